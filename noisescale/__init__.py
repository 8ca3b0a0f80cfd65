"""The gradient noise scale with an error bar, in anybody's training loop."""

from noisescale import theory
from noisescale.advice import Advice, advise
from noisescale.average import MomentAverage, NoiseScale, Ratio, ratio_of_means
from noisescale.curvature import Curvature, hessian_noise
from noisescale.estimators import Moments, gradient_moments
from noisescale.linesearch import LineSearch, LineSearchFit, fit_line_searches, line_search
from noisescale.pareto import Estimate, ParetoFit, fit_pareto
from noisescale.per_example import per_example_sq_norms
from noisescale.scaling import ScalingFit, fit_scaling
from noisescale.schedule import AdaptiveBatchSampler, AdaptiveBatchSize
from noisescale.seeds import bootstrap_seeds
from noisescale.tracker import NoiseTracker

__all__ = [
    "AdaptiveBatchSampler",
    "AdaptiveBatchSize",
    "Advice",
    "Curvature",
    "Estimate",
    "LineSearch",
    "LineSearchFit",
    "MomentAverage",
    "Moments",
    "NoiseScale",
    "NoiseTracker",
    "ParetoFit",
    "Ratio",
    "ScalingFit",
    "advise",
    "bootstrap_seeds",
    "fit_line_searches",
    "fit_pareto",
    "fit_scaling",
    "gradient_moments",
    "hessian_noise",
    "line_search",
    "per_example_sq_norms",
    "ratio_of_means",
    "theory",
]

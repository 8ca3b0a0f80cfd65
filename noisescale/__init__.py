"""The gradient noise scale with an error bar, in anybody's training loop."""

from noisescale.averaging import MomentAverage, NoiseScale, Ratio, ratio_of_means
from noisescale.curvature.hessian import Curvature, hessian_noise
from noisescale.curvature.line_search import LineSearch, LineSearchFit, fit_line_searches, line_search
from noisescale.estimators import Moments, gradient_moments
from noisescale.pareto.bootstrap import bootstrap_seeds
from noisescale.pareto.fit import Estimate, ParetoFit, fit_pareto
from noisescale.pareto.scaling_law import ScalingFit, fit_scaling
from noisescale.per_example.vmap import per_example_sq_norms
from noisescale.planning import theory
from noisescale.planning.adaptive_batch import AdaptiveBatchSampler, AdaptiveBatchSize
from noisescale.planning.advice import Advice, advise
from noisescale.tracking.tracker import NoiseTracker

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

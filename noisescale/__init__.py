"""The gradient noise scale with an error bar, in anybody's training loop."""

from noisescale.average import MomentAverage, NoiseScale, Ratio, ratio_of_means
from noisescale.curvature import (
    Curvature,
    LineSearch,
    LineSearchFit,
    fit_line_searches,
    hessian_noise,
    line_search,
)
from noisescale.estimators import Moments, gradient_moments
from noisescale.tracker import NoiseTracker

__all__ = [
    "Curvature",
    "LineSearch",
    "LineSearchFit",
    "MomentAverage",
    "Moments",
    "NoiseScale",
    "NoiseTracker",
    "Ratio",
    "fit_line_searches",
    "gradient_moments",
    "hessian_noise",
    "line_search",
    "ratio_of_means",
]

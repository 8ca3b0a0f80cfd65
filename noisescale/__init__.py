"""The gradient noise scale with an error bar, in anybody's training loop."""

from noisescale.average import MomentAverage, NoiseScale, Ratio, ratio_of_means
from noisescale.estimators import Moments, gradient_moments

__all__ = [
    "MomentAverage",
    "Moments",
    "NoiseScale",
    "Ratio",
    "gradient_moments",
    "ratio_of_means",
]

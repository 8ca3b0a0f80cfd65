"""One run: the loop, its measurements, optimizers, ranks, and its record on disk. Which runs there are belongs to
`sweep`.
"""

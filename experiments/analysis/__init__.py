"""Tables into answers: crossings, learning rates, fits, noise scales, verdicts. Nothing here trains or draws; sentences
about the answers belong to `report`.
"""

"""S = S_min (1 + B_crit/B) fitted to runs: likelihood with censoring, intervals, bootstrap over seeds, B_crit
against the loss. What to do with B_crit belongs to `planning`.
"""

"""What follows from B_crit or B_simple: predicted steps, time and cost, advice, a batch size that adapts. Nothing
here looks at gradients.
"""

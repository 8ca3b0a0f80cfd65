"""Gradients seen while somebody's own loop trains: the tracker, and how it sees them under DDP, `fully_shard` and
wrappers. What it adds up is estimated in `estimators` and `averaging`.
"""

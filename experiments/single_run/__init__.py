"""Experiments on one run rather than a sweep: branching, line searches, temperature, autocorrelation, adaptive batch
sizes; each writes a table of its own. Their pictures belong to `figures`.
"""

"""Experiments on one run rather than a sweep: branching, line searches, temperature, autocorrelation, adaptive batch
sizes.
"""

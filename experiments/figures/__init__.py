"""Committed tables → pictures, one module for figures that share their panels. Numbers come from `analysis`; nothing
is fitted here.
"""

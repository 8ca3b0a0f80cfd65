"""The report: functions from sweeps to Markdown blocks, every sentence made from the numbers, and the pages they
make.
"""

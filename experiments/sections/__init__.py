"""The report's sections: functions from sweeps to Markdown blocks, every sentence made from the numbers."""

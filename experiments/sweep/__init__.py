"""Which runs are wanted, driving them to the end, their cost and status, and what happens to them afterwards. How a job
gets to a processor belongs to `launch`.
"""

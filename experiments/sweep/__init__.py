"""Which runs are wanted, driving them to the end, their cost and status. How a job gets to a processor belongs to
`launch`.
"""

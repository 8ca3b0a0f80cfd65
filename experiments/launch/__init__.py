"""How a job gets to a processor: local pool, Slurm, Ray, a driver that is left alone. Which runs are wanted, and what
they cost, belongs to `sweep`.
"""

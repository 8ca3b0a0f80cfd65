"""How jobs get to processors: local pool, Slurm, Ray, detached drivers, a short while on a GPU."""

"""Data sets: where they come from, decoded once into checked caches, drawn from in batches. What is trained on them
belongs to `tasks`.
"""

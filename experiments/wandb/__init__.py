"""Records into Weights & Biases, by a process of its own. Nothing is read back, and no other folder talks to W&B."""

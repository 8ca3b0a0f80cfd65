"""Records into Weights & Biases, by a process of its own; nothing is read back."""

"""Callbacks for trainers, each in an extra of its own: `noisescale[huggingface]`, `noisescale[lightning]`."""

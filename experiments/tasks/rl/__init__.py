"""Reinforcement learning: a rollout in place of a batch (A2C, PPO, two-player self-play)."""

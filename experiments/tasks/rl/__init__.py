"""Games: environments, rollouts, A2C, PPO and self-play. What is trained on fixed data lies one folder up."""

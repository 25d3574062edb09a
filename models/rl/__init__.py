"""Reinforcement learning maths: advantages, policy losses, KL estimators, aggregation."""

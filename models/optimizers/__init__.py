"""Optimizers, learning-rate schedules and the guarded update."""

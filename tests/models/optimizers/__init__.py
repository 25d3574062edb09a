"""Tests of models/optimizers."""

"""Sampling and KV-cached batched generation."""

"""Losses over target tokens, and gradients accumulated over micro-batches."""

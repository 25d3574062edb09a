"""Feeding a training step: batches made ahead, shards from object storage, leftovers of killed readers."""

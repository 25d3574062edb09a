"""Plain PyTorch: tensors in, tensors out. Nothing here knows the pipeline that calls it."""

"""Number formats of exported weights.

One file a format, each with the same pair of verbs: ``quantize`` offline (weights in, codes and scales out) and ``dequantize``
at load time. ``packing`` lays codes out as bits, ``compressed_checkpoint`` names and places the tensors as the compressed-tensors
checkpoint convention asks, so that transformers, vLLM and SGLang read the file.
"""

"""Teacher-forced log-probabilities of given tokens under a decoder, at the temperature they were sampled with.

In: token rows and the mask of the tokens wanted. Out: log-probabilities in float32, 0 outside the mask, differentiable.
The sampler reports log_softmax(logits / temperature), so the trainer must divide by the same temperature, or the ratio of the
two is off at every temperature but 1. The head is applied to the wanted positions only.

Shapes: B rows, T positions, H hidden, V vocabulary, N wanted tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.architectures.decoder import Decoder


def token_logprobs(
    model: Decoder,
    tokens_BT: Tensor,
    mask_BT: Tensor,
    *,
    temperature: float,
    positions_BT: Tensor | None = None,
    segments_BT: Tensor | None = None,
) -> Tensor:
    """log p(tokens[b, t] | tokens[b, :t]) / temperature-scaled, (B, T) float32, where `mask_BT` is true and 0 elsewhere.

    Rows padded on the right need neither positions nor segments, as attention is causal; rows padded on the left need both
    (real tokens at positions 0, 1, ..., padding in a segment of its own), and then give the same numbers.
    Raises ValueError for a temperature that is not positive, a mask of another shape, or a wanted token at t=0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature: got {temperature!r}, expected more than 0 (greedy choices have no log-probability)")
    if mask_BT.shape != tokens_BT.shape:
        raise ValueError(f"mask: got shape {tuple(mask_BT.shape)}, expected {tuple(tokens_BT.shape)} as the tokens")
    mask_BT = mask_BT.bool()
    if mask_BT[:, 0].any():
        raise ValueError("mask: got a wanted token at position 0, expected t >= 1: nothing predicts a row's first token")
    hidden_BTH = model.hidden(tokens_BT, positions_BT, segments_BT)
    logits_NV = model.head(hidden_BTH[:, :-1][mask_BT[:, 1:]]).float()
    if temperature != 1.0:
        logits_NV = logits_NV / temperature
    chosen_N = logits_NV.gather(1, tokens_BT[mask_BT][:, None]).squeeze(1) - logits_NV.logsumexp(dim=1)
    return torch.zeros(mask_BT.shape, dtype=chosen_N.dtype, device=chosen_N.device).masked_scatter(mask_BT, chosen_N)

"""Likelihood of held-out text, and how closely one model follows another.

In: logits and targets. Out: negative log-likelihoods in float64 nats, bits per byte, and divergence from a reference model.
Shapes: B rows, T positions, V vocabulary, N scored positions. A target of -100 is not scored; everything else is, once.
Logits are float32; log-softmax and sums are float64, so totals do not depend on how rows are batched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

IGNORE = -100
CHUNK_POSITIONS = 1024
"""Positions turned to float64 at once: 1024 x 151,936 logits (the largest vocabulary in use) are 1.2 GB."""


def bits_per_byte(nll_nats: float, num_bytes: int) -> float:
    """NLL / (ln 2 * bytes): bits of code length per UTF-8 byte of the original text; comparable across tokenizers.

    Raises ValueError for no bytes.
    """
    if num_bytes < 1:
        raise ValueError(f"bits_per_byte got {num_bytes} bytes; expected at least 1: the held-out set is empty")
    return nll_nats / (math.log(2) * num_bytes)


def perplexity(nll_nats: float, num_targets: int) -> float:
    """exp(NLL / scored tokens); infinity when it overflows. Comparable only between models with one tokenizer."""
    if num_targets < 1:
        raise ValueError(f"perplexity got {num_targets} scored tokens; expected at least 1: the held-out set is empty")
    mean = nll_nats / num_targets
    return math.exp(mean) if mean < 709 else math.inf


@torch.no_grad()
def token_nll(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Negative log-likelihood of each target in nats, float64 (B, T); exactly 0 where the target is -100."""
    nll_BT = torch.zeros(targets_BT.shape, dtype=torch.float64, device=logits_BTV.device)
    scored_BT = targets_BT != IGNORE
    logits_NV, targets_N = logits_BTV[scored_BT], targets_BT[scored_BT]
    parts = [
        -torch.log_softmax(logits.double(), dim=-1).gather(1, targets[:, None])[:, 0]
        for logits, targets in zip(logits_NV.split(CHUNK_POSITIONS), targets_N.split(CHUNK_POSITIONS), strict=True)
    ]
    if parts:
        nll_BT[scored_BT] = torch.cat(parts)
    return nll_BT


def kl_divergence(ref_logits_NV: Tensor, logits_NV: Tensor) -> Tensor:
    """KL(ref || q) of each position in nats, float64 (N,): sum_v p_ref (log p_ref - log p_q). Never below 0 but for rounding."""
    return _kl_of_logp(*(torch.log_softmax(logits.double(), dim=-1) for logits in (ref_logits_NV, logits_NV)))


def _kl_of_logp(ref_logp_NV: Tensor, logp_NV: Tensor) -> Tensor:
    return (ref_logp_NV.exp() * (ref_logp_NV - logp_NV)).sum(dim=-1)


@dataclass
class FidelityMeter:
    """Collects how a quantised model q follows its reference, position by position; feed batches, then read ``result``."""

    _kl: list[Tensor] = field(default_factory=list)
    _ref_nll: list[Tensor] = field(default_factory=list)
    _nll: list[Tensor] = field(default_factory=list)
    _num_agree: int = 0

    @torch.no_grad()
    def update(self, ref_logits_BTV: Tensor, logits_BTV: Tensor, targets_BT: Tensor) -> None:
        """Add the scored positions of one batch. Raises ValueError when the three disagree in shape."""
        if ref_logits_BTV.shape != logits_BTV.shape or logits_BTV.shape[:-1] != targets_BT.shape:
            raise ValueError(
                f"fidelity got logits {tuple(ref_logits_BTV.shape)} and {tuple(logits_BTV.shape)} with targets {tuple(targets_BT.shape)}; "
                "expected (B, T, V) twice and (B, T): the two models must share tokenizer and vocabulary"
            )
        scored_BT = targets_BT != IGNORE
        chunks = zip(*(part[scored_BT].split(CHUNK_POSITIONS) for part in (ref_logits_BTV, logits_BTV, targets_BT)), strict=True)
        for ref_NV, other_NV, targets_N in chunks:
            ref_logp_NV, logp_NV = (torch.log_softmax(logits.double(), dim=-1) for logits in (ref_NV, other_NV))
            self._kl.append(_kl_of_logp(ref_logp_NV, logp_NV))
            self._ref_nll.append(-ref_logp_NV.gather(1, targets_N[:, None])[:, 0])
            self._nll.append(-logp_NV.gather(1, targets_N[:, None])[:, 0])
            self._num_agree += int((ref_NV.argmax(-1) == other_NV.argmax(-1)).sum())

    def result(self) -> dict[str, float]:
        """kl_mean, kl_p99, kl_max (nats per token), top1_agreement, ppl_ratio = exp(mean NLL difference), prob_rms = root mean
        square of the change of the target's probability, num_tokens. Raises ValueError when nothing was scored."""
        num_tokens = sum(len(kl) for kl in self._kl)
        if not num_tokens:
            raise ValueError("fidelity was measured on no tokens; expected at least 1: the held-out sets are empty")
        kl, ref_nll, nll = (torch.cat(parts).cpu().numpy() for parts in (self._kl, self._ref_nll, self._nll))
        return {
            "kl_mean": float(kl.mean()),
            "kl_p99": float(np.quantile(kl, 0.99)),
            "kl_max": float(kl.max()),
            "top1_agreement": self._num_agree / num_tokens,
            "ppl_ratio": float(np.exp(np.mean(nll - ref_nll))),
            "prob_rms": float(np.sqrt(np.mean((np.exp(-nll) - np.exp(-ref_nll)) ** 2))),
            "num_tokens": float(num_tokens),
        }

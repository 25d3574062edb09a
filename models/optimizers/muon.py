"""Muon for hidden matrices, AdamW for the rest, as one optimizer.

In: a module with gradients. Out: hidden matrices moved along their orthogonalised momentum, every other parameter by AdamW. The
update of a matrix has a fixed root mean square, near that of AdamW, so that both share one learning rate, schedule and decay.

With gradient G, momentum mu, learning rate lr, decay d, and an n x m matrix W:

    M <- mu M + G
    U  = G + mu M                                    (without Nesterov: U = M)
    X  = newton_schulz(U)
    W <- (1 - lr d) W - lr rms sqrt(max(n, m)) X     (an orthogonal n x m matrix has root mean square 1 / sqrt(max(n, m)))

Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; decoupled decay and a fixed root mean square: Liu et
al. 2025, "Muon is scalable for LLM training", arXiv 2502.16982; eight fast and two settling steps: the DeepSeek V4 report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.optimizers.adamw import param_groups

FAST = (3.4445, -4.7750, 2.0315)
"""a, b, c of X <- a X + (b A + c A^2) X with A = X X^T: lifts small singular values 3.4-fold a step, leaves the rest within [0.68, 1.2]."""
SETTLING = (2.0, -1.5, 0.5)
"""The same form with its fixed point at 1 and slope 0 there: what lies within [0.68, 1.2] is within [1, 1.002] after two steps."""
BATCH_ELEMENTS = 2**24
"""Matrices of one shape are orthogonalised together while they hold no more than this: 64 MiB of float32 a copy, at any depth."""
HEAD = "lm_head"
MOMENTUM = "momentum"


@dataclass(frozen=True, kw_only=True, slots=True)
class MuonSettings:
    """Values of Muon's own; learning rate and decay are shared with AdamW. ValueError for a value outside its range."""

    momentum: float
    """mu, the share of the running sum of gradients that is kept, in [0, 1)."""
    nesterov: bool
    """Look one step ahead: U = G + mu M instead of M."""
    update_rms: float
    """Root mean square of the elements of an update at learning rate 1."""
    fast_steps: int
    """Newton-Schulz steps that lift the small singular values."""
    settling_steps: int
    """Newton-Schulz steps, after those, that bring all singular values to 1."""
    newton_schulz_dtype: str
    """"fp32" or "bf16": the arithmetic of the iteration. Momentum and weights keep their own."""

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"muon.momentum: got {self.momentum}, expected a number from 0 to below 1")
        if not (self.update_rms > 0 and math.isfinite(self.update_rms)):
            raise ValueError(f"muon.update_rms: got {self.update_rms}, expected a finite number above 0")
        if self.fast_steps < 0 or self.settling_steps < 0 or self.fast_steps + self.settling_steps == 0:
            raise ValueError(
                f"muon: got fast_steps={self.fast_steps}, settling_steps={self.settling_steps}; expected none negative and one of them above 0"
            )
        if self.newton_schulz_dtype not in _DTYPES:
            raise ValueError(f"muon.newton_schulz_dtype: got {self.newton_schulz_dtype!r}, expected one of {', '.join(_DTYPES)}")


_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def newton_schulz(matrices: Tensor, fast_steps: int = 8, settling_steps: int = 2, dtype: torch.dtype = torch.float32) -> Tensor:
    """The nearest orthogonal matrix of each (..., n, m) matrix, approximately: U V^T of its singular value decomposition U S V^T.

    Odd polynomials of the matrix act on its singular values alone; no decomposition is made. In float32, with eight and two steps, a
    singular value of at least 1e-3 of the Frobenius norm becomes 1 to within 6e-4, one of 1e-4 to within 2.1e-3, and zero stays zero:
    the zero matrix gives zero; none, hence no element, exceeds 1.01. The result does not depend on the scale of the input, which may
    be as small or large as the format allows. Same dtype as the input. Raises ValueError below two dimensions.
    """
    if matrices.ndim < 2:
        raise ValueError(f"newton_schulz: got shape {tuple(matrices.shape)}, expected a matrix (n, m) or a stack (..., n, m)")
    if matrices.numel() == 0:
        return matrices.clone()
    tall = matrices.shape[-2] > matrices.shape[-1]
    short_side_first = matrices.mT if tall else matrices
    x = short_side_first.reshape(-1, *short_side_first.shape[-2:]).float()
    # Dividing by the largest element first keeps the squares of the norm within float32.
    x = x / x.abs().amax(dim=(1, 2), keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    x = (x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp_min(1.0)).to(dtype)
    for a, b, c in [FAST] * fast_steps + [SETTLING] * settling_steps:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.to(matrices.dtype).reshape(short_side_first.shape)
    return x.mT if tall else x


def is_hidden_matrix(parameter: nn.Parameter, embeddings: set[int], name: str) -> bool:
    """Whether Muon takes a parameter: two dimensions, or three for a stack of expert matrices; no embedding (tied head included), no head."""
    return parameter.ndim in (2, 3) and id(parameter) not in embeddings and HEAD not in name.split(".")


def muon(model: nn.Module, lr: float, betas: tuple[float, float], weight_decay: float, settings: MuonSettings, eps: float = 1e-8) -> Muon:
    """Muon over the hidden matrices of `model`, AdamW with `betas` and `eps` over its other trainable parameters.

    Raises ValueError when no trainable parameter is a hidden matrix, or for a value out of range.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [p for name, p in trainable if is_hidden_matrix(p, embeddings, name)]
    if not matrices:
        raise ValueError("muon: got a model without a trainable hidden matrix, expected at least one; use adamw")
    taken = {id(p) for p in matrices}
    rest = [p for _, p in trainable if id(p) not in taken]
    others = torch.optim.AdamW(param_groups(rest, weight_decay), lr=lr, betas=betas, eps=eps, fused=True) if rest else None
    return Muon(matrices, others, lr, weight_decay, settings)


class Muon(torch.optim.Optimizer):
    """See the head of this file. Group 0 holds the matrices; the groups of `others` follow and share this object's state.

    So a checkpoint, a schedule or `zero_grad` sees one optimizer. A matrix keeps one tensor of its own size and type, "momentum".
    """

    def __init__(
        self, matrices: Iterable[nn.Parameter], others: torch.optim.AdamW | None, lr: float, weight_decay: float, settings: MuonSettings
    ) -> None:
        super().__init__([{"params": list(matrices), "weight_decay": weight_decay, "algorithm": "Muon"}], {"lr": lr})
        self.settings = settings
        self._others = others
        if others is not None:
            self.param_groups += [group | {"algorithm": "AdamW"} for group in others.param_groups]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update of every parameter that holds a gradient; the others do not change, nor does their state."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        group = self.param_groups[0]
        for batch in same_shape_batches([p for p in group["params"] if p.grad is not None]):
            self._update(batch, group["lr"], group["weight_decay"])
        if self._others is not None:
            # Linked here and not once: load_state_dict puts new lists and dicts in their place.
            self._others.param_groups, self._others.state = self.param_groups[1:], self.state
            self._others.step()
        return loss

    def _update(self, matrices: list[nn.Parameter], lr: float, weight_decay: float) -> None:
        for matrix in matrices:
            if MOMENTUM not in self.state[matrix]:
                self.state[matrix][MOMENTUM] = torch.zeros_like(matrix)
        momenta = [self.state[matrix][MOMENTUM] for matrix in matrices]
        grads = [p.grad for p in matrices]
        torch._foreach_mul_(momenta, self.settings.momentum)
        torch._foreach_add_(momenta, grads)
        directions = torch._foreach_add(grads, momenta, alpha=self.settings.momentum) if self.settings.nesterov else momenta
        stacked = torch.stack([_short_side_first(u) for u in directions])
        settings = self.settings
        updates = newton_schulz(stacked, settings.fast_steps, settings.settling_steps, _DTYPES[settings.newton_schulz_dtype])
        scale = lr * settings.update_rms * math.sqrt(stacked.shape[-1])
        torch._foreach_mul_(matrices, 1 - lr * weight_decay)
        torch._foreach_add_(matrices, [x if x.shape == p.shape else x.mT for x, p in zip(updates, matrices)], alpha=-scale)


def same_shape_batches(matrices: Iterable[nn.Parameter], max_elements: int = BATCH_ELEMENTS) -> list[list[nn.Parameter]]:
    """Matrices of one shape, type and device, a transposed one included, in lists of at most `max_elements` elements, or of one matrix."""
    batches: dict[tuple[object, ...], list[list[nn.Parameter]]] = {}
    for matrix in matrices:
        key = (*_short_side_first(matrix).shape, matrix.dtype, matrix.device)
        lists = batches.setdefault(key, [[]])
        if lists[-1] and (len(lists[-1]) + 1) * matrix.numel() > max_elements:
            lists.append([])
        lists[-1].append(matrix)
    return [batch for lists in batches.values() for batch in lists]


def _short_side_first(matrix: Tensor) -> Tensor:
    return matrix.mT if matrix.shape[-2] > matrix.shape[-1] else matrix

"""LoRA: a trained low-rank addition to frozen linear layers, and its merge into the plain weights.

In: a model with `nn.Linear` layers. Out: the same model computing x W^T + (alpha / r) x A^T B^T with A (r, K) and B (N, r) trained, W
frozen. B starts at zero, so the adapted model first equals the base. Hu et al. 2021, arXiv 2106.09685.

Low-precision layers keep their precision: the adapter path beside them runs in the adapter's own float32. Merging adds the product to W
in float64, once; a base stored in an integer or 8-bit format is refused, because rounding would undo a gentle fine-tune.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_MERGEABLE = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class LoraLinear(nn.Module):
    """A frozen linear layer (any subclass of nn.Linear) plus its adapter."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        self.base = base
        self.scaling = alpha / rank
        # Drawn on CPU so that every device starts from the same adapter. Uniform with bound 1 / sqrt(K), LoRA's Kaiming choice.
        bound = base.in_features**-0.5
        drawn_RK = torch.empty(rank, base.in_features).uniform_(-bound, bound, generator=generator)
        self.lora_A = nn.Parameter(drawn_RK.to(base.weight.device))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) to (..., N), in the base layer's output dtype."""
        y = self.base(x)
        low = F.linear(x.to(self.lora_A.dtype), self.lora_A) * self.scaling
        return y + F.linear(low, self.lora_B).to(y.dtype)

    def delta(self) -> Tensor:
        """What the merge adds to the weight: (alpha / r) B A, float64 (N, K)."""
        return (self.lora_B.detach().double() @ self.lora_A.detach().double()) * self.scaling


@dataclass(frozen=True, kw_only=True)
class MergeReport:
    """What became of every trained tensor."""

    merged: tuple[str, ...]
    """Weights an adapter was folded into; they are the base model's own names."""
    adapters: tuple[str, ...]
    """The trained A and B tensors that are gone."""
    trained_in_full: tuple[str, ...]
    """Tensors trained directly beside the adapters; they stay in the model as trained."""
    unchanged: tuple[str, ...]
    """The part of `merged` where not one bit changed."""
    largest_change: float
    """Largest absolute change of a weight."""
    rounding_error: float
    """Largest absolute difference between a stored merged weight and its float64 value."""


def add_lora(
    model: nn.Module,
    rank: int,
    alpha: float,
    targets: tuple[str, ...],
    seed: int,
    trained_in_full: tuple[str, ...] = (),
) -> None:
    """Freeze `model` and put an adapter on every linear layer whose own name is in `targets` (e.g. "q_proj"), in place.

    Modules whose own name is in `trained_in_full` (e.g. "lm_head") stay trainable as they are. The initial A depends only on `seed` and
    the order of layers. Raises ValueError, before anything changes, when a name matches nothing or both lists, the rank is below 1,
    alpha is not positive, or the model has adapters already.
    """
    if rank < 1 or not alpha > 0:
        raise ValueError(f"add_lora: got rank={rank}, alpha={alpha}; expected rank >= 1 and alpha > 0")
    if any(isinstance(m, LoraLinear) for m in model.modules()):
        raise ValueError("add_lora: got a model that has adapters; merge them first (merge_lora)")
    sites = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if name in targets and isinstance(child, nn.Linear)
    ]
    in_full = [module for name, module in model.named_modules() if name.rpartition(".")[2] in trained_in_full]
    _check_names(model, targets, trained_in_full)
    generator = torch.Generator().manual_seed(seed)
    model.requires_grad_(False)
    for parent, name, layer in sites:
        setattr(parent, name, LoraLinear(layer, rank, alpha, generator).train(layer.training))
    for module in in_full:
        module.requires_grad_(True)


def merge_lora(model: nn.Module) -> MergeReport:
    """Fold every adapter into its layer, in place: plain layers and plain parameter names again, all parameters trainable.

    Raises ValueError, with the model untouched, when there is no adapter, a base weight is stored in an 8-bit or integer format, or the
    merge would not change a single weight (an adapter that was never trained, or a change lost in rounding).
    """
    sites = list(_adapters(model))
    if not sites:
        raise ValueError("merge_lora: got a model without adapters; call add_lora and train first")
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    merges = [_merge_one(path, layer) for _, _, path, layer in sites]
    if not any(merge.changed for merge in merges):
        raise ValueError(
            f"merge_lora: got {len(merges)} adapters that change no weight, expected at least one change; the adapter is untrained, or "
            "its change is below the weights' precision: merge into float32 weights"
        )
    adapters = tuple(n for n in trained if n.rpartition(".")[2] in ("lora_A", "lora_B"))
    for (parent, name, _, layer), merge in zip(sites, merges, strict=True):
        with torch.no_grad():
            layer.base.weight.copy_(merge.weight)
        setattr(parent, name, layer.base)
    model.requires_grad_(True)
    return MergeReport(
        merged=tuple(merge.name for merge in merges),
        adapters=adapters,
        trained_in_full=tuple(n for n in trained if n not in adapters),
        unchanged=tuple(merge.name for merge in merges if not merge.changed),
        largest_change=max(merge.largest_change for merge in merges),
        rounding_error=max(merge.rounding_error for merge in merges),
    )


def trainable_names(model: nn.Module) -> list[str]:
    """Names of the parameters that receive gradients, in order."""
    return [name for name, p in model.named_parameters() if p.requires_grad]


@dataclass(frozen=True)
class _Merge:
    name: str
    weight: Tensor
    changed: bool
    largest_change: float
    rounding_error: float


def _merge_one(path: str, layer: LoraLinear) -> _Merge:
    """The merged weight of one layer, in the stored dtype, without touching the layer."""
    old = layer.base.weight.detach()
    if old.dtype not in _MERGEABLE:
        raise ValueError(
            f"merge_lora, {path}.weight: got {old.dtype}, expected one of {', '.join(map(str, _MERGEABLE))}; merge into the "
            "high-precision weights and quantize once, at export"
        )
    exact = old.double() + layer.delta()
    new = exact.to(old.dtype)
    return _Merge(
        name=f"{path}.weight",
        weight=new,
        changed=not torch.equal(new, old),
        largest_change=float((new.double() - old.double()).abs().max()),
        rounding_error=float((new.double() - exact).abs().max()),
    )


def _adapters(model: nn.Module) -> Iterator[tuple[nn.Module, str, str, LoraLinear]]:
    """(parent, child name, dotted path, layer) of every adapted layer."""
    for prefix, parent in model.named_modules():
        for name, child in parent.named_children():
            if isinstance(child, LoraLinear):
                yield parent, name, f"{prefix}.{name}" if prefix else name, child


def _check_names(model: nn.Module, targets: tuple[str, ...], trained_in_full: tuple[str, ...]) -> None:
    own_names = [(path.rpartition(".")[2], module) for path, module in model.named_modules() if path]
    linear = sorted({name for name, module in own_names if isinstance(module, nn.Linear)})
    everything = sorted({name for name, _ in own_names})
    both = sorted(set(targets) & set(trained_in_full))
    if both:
        raise ValueError(f"add_lora: got {both} both as adapter targets and as trained in full; expected each in one list")
    for what, asked, known in (("targets", targets, linear), ("trained_in_full", trained_in_full, everything)):
        missing = sorted(set(asked) - set(known))
        if missing or (what == "targets" and not asked):
            raise ValueError(f"add_lora, {what}: got {missing or 'none'}, expected names among {known}")

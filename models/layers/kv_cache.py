"""Preallocated key/value cache: one slot per token of every row; the slot number is the token's position.

Because a query at position p sees the slots 0..p and nothing else, slots above a row's length hold no meaning and need no clearing:
right-padded prompts of unequal length work by writing the padding too, then calling `set_lengths` with the true lengths; later
tokens overwrite the padding before anything can see it.

Shapes: B rows, K key/value heads, S slots, D head_dim, T new tokens per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class CacheShape(Protocol):
    """What the cache needs to know of a model; DecoderConfig satisfies it."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def max_seq_len(self) -> int: ...


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Where one decode call reads and writes; the same for every layer, so it is worked out once."""

    rows: Tensor | None
    """Cache rows of this call (B,), int64; None means row b of the input is row b of the cache."""
    start: int | None
    """First slot written, when it is the same for every row; None: rows differ and `places` is used."""
    places: Tensor | None
    """Where the new (b, k, t) go in a store seen as (B * K * S, D): int64 (b * k * t,)."""
    used: int
    """Slots read: one more than the highest slot written."""
    mask: Tensor | None
    """Additive attention mask (B, 1, T, used), or None where no mask is needed."""
    causal: bool
    """The call fills slots 0..T-1 of its rows, so plain causal attention over the new tokens is exact."""


class KVCache:
    """Keys and values of every layer, (B, K, S, D) each, and the number of valid slots of each row."""

    def __init__(
        self, config: CacheShape, batch: int, max_len: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        """Allocates `batch` rows of `max_len` slots. Raises ValueError when either is below 1 or max_len is above max_seq_len."""
        if batch < 1 or max_len < 1:
            raise ValueError(f"KVCache: got batch={batch}, max_len={max_len}; expected both >= 1; check the prompt list")
        if max_len > config.max_seq_len:
            raise ValueError(
                f"KVCache: got max_len={max_len}; expected at most the model's max_seq_len={config.max_seq_len}; "
                "shorten the prompts or the completions"
            )
        shape = (batch, config.num_kv_heads, max_len, config.head_dim)
        self.max_len = max_len
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]
        self.lengths_B = torch.zeros(batch, dtype=torch.int64, device=device)

    @property
    def batch(self) -> int:
        """Number of rows held now."""
        return self.lengths_B.shape[0]

    def set_lengths(self, lengths_B: Tensor | Sequence[int]) -> None:
        """Sets the number of valid slots of every row, for example after a right-padded prefill, or to roll tokens back."""
        lengths = torch.as_tensor(lengths_B, dtype=torch.int64, device=self.lengths_B.device)
        if lengths.shape != self.lengths_B.shape:
            raise ValueError(f"KVCache.set_lengths: got shape {tuple(lengths.shape)}; expected ({self.batch},), one per row")
        self.lengths_B = lengths.clone()

    def keep(self, rows_index: Tensor | Sequence[int]) -> None:
        """Compacts the cache to the given rows, in the given order; the other rows' memory is released."""
        index = torch.as_tensor(rows_index, dtype=torch.int64, device=self.lengths_B.device)
        self.keys = [key.index_select(0, index) for key in self.keys]
        self.values = [value.index_select(0, index) for value in self.values]
        self.lengths_B = self.lengths_B.index_select(0, index)

    def plan(self, positions_BT: Tensor, rows: Tensor | Sequence[int] | None, dtype: torch.dtype) -> CachePlan:
        """Works out slots, mask and shortcuts for new tokens at `positions_BT`; advances the rows' lengths.

        Raises ValueError when a position lies outside the cache or the row count differs.
        """
        index = None if rows is None else torch.as_tensor(rows, dtype=torch.int64, device=self.lengths_B.device)
        expected = self.batch if index is None else index.shape[0]
        num_rows, num_new = positions_BT.shape
        if num_rows != expected:
            raise ValueError(f"KVCache: got {num_rows} rows of positions; expected {expected}; pass rows= or call keep() first")
        # One transfer to the host for both ends.
        first, last = torch.stack(torch.aminmax(positions_BT)).tolist()
        if first < 0 or last >= self.max_len:
            raise ValueError(
                f"KVCache: got positions {first}..{last}; expected within 0..{self.max_len - 1}; allocate a larger max_len"
            )
        # The two ends give away a run of consecutive positions shared by all rows only when T fits between them.
        uniform = last - first == num_new - 1 and (num_new == 1 or _same_run(positions_BT, first))
        causal = uniform and first == 0
        mask = None
        if not (causal or (uniform and num_new == 1)):
            slots_S = torch.arange(last + 1, device=positions_BT.device)
            hidden_BTS = slots_S > positions_BT[..., None]
            mask = torch.zeros(hidden_BTS.shape, dtype=dtype, device=positions_BT.device)
            mask = mask.masked_fill_(hidden_BTS, float("-inf")).unsqueeze(1)
        ends_B = positions_BT[:, -1] + 1 if num_new == 1 else positions_BT.amax(dim=1) + 1
        if index is None:
            self.lengths_B = ends_B
        else:
            self.lengths_B = self.lengths_B.index_copy(0, index, ends_B)
        places = None if uniform else self._places(positions_BT, index)
        return CachePlan(index, first if uniform else None, places, last + 1, mask, causal)

    def _places(self, positions_BT: Tensor, index: Tensor | None) -> Tensor:
        num_heads = self.keys[0].shape[1]
        rows_B = torch.arange(self.batch, device=positions_BT.device) if index is None else index
        rows_BK = rows_B[:, None] * num_heads + torch.arange(num_heads, device=positions_BT.device)
        return (rows_BK[:, :, None] * self.max_len + positions_BT[:, None, :]).reshape(-1)

    def update(self, layer: int, key_BKTD: Tensor, value_BKTD: Tensor, plan: CachePlan) -> tuple[Tensor, Tensor]:
        """Writes the new keys and values of one layer; returns what to attend to, (B, K, slots read, D) each."""
        _write(self.keys[layer], key_BKTD, plan)
        _write(self.values[layer], value_BKTD, plan)
        if plan.causal:
            return key_BKTD, value_BKTD
        return _read(self.keys[layer], plan), _read(self.values[layer], plan)


def _same_run(positions_BT: Tensor, first: int) -> bool:
    run_T = torch.arange(first, first + positions_BT.shape[1], device=positions_BT.device)
    return bool((positions_BT == run_T).all())


def _write(store: Tensor, new_BKTD: Tensor, plan: CachePlan) -> None:
    """Copies the new tokens into their slots; store (B_all, K, S, D)."""
    if plan.places is not None:
        head_dim = store.shape[-1]
        store.view(-1, head_dim).index_copy_(0, plan.places, new_BKTD.reshape(-1, head_dim).to(store.dtype))
        return
    assert plan.start is not None, "a plan names a common first slot or the places of every token"
    end = plan.start + new_BKTD.shape[2]
    if plan.rows is None:
        store[:, :, plan.start : end] = new_BKTD
    else:
        store[plan.rows, :, plan.start : end] = new_BKTD.to(store.dtype)


def _read(store: Tensor, plan: CachePlan) -> Tensor:
    used = store[:, :, : plan.used]
    return used if plan.rows is None else used.index_select(0, plan.rows)

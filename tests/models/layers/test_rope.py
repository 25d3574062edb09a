"""Rotary positions: hand-worked angles, the relative-position property, the published slowest frequency, gradients."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.layers.rope import inverse_frequencies, rope_tables, rotate, rotate_reference


def test_hand_worked_pairs() -> None:
    """D = 4, base 100: pair 0 turns by p, pair 1 by p / 10; element i is paired with i + 2."""
    cos, sin = rope_tables(torch.tensor([[2]]), 4, 100.0)
    out = rotate(torch.tensor([1.0, 0.0, 0.0, 3.0]).view(1, 1, 1, 4), cos, sin).flatten()
    expected = [math.cos(2), -3 * math.sin(0.2), math.sin(2), 3 * math.cos(0.2)]
    torch.testing.assert_close(out, torch.tensor(expected))


def test_position_zero_is_the_identity() -> None:
    x = torch.randn(2, 1, 3, 8)
    assert torch.equal(rotate(x, *rope_tables(torch.zeros(2, 1, dtype=torch.int64), 8, 1e4)), x)


def test_published_slowest_frequency_and_base_change() -> None:
    """Base 1e6, head 128: slowest pair 1.2409e-6; a new base leaves pair 0 alone (Qwen3 long-context stage)."""
    slow, fast = inverse_frequencies(128, 1e6), inverse_frequencies(128, 1e4)
    assert math.isclose(slow[-1].item(), 1.2409e-6, rel_tol=1e-4)
    assert slow[0] == fast[0] == 1.0
    assert (slow[1:] < fast[1:]).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.integers(0, 10**6))
def test_dot_products_depend_on_the_distance_only(first: int, second: int, shift: int, seed: int) -> None:
    query, key = torch.randn(2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def score(p: int, q: int) -> float:
        tables_p, tables_q = rope_tables(torch.tensor([[p]]), 16, 1e4), rope_tables(torch.tensor([[q]]), 16, 1e4)
        return float((rotate(query, *tables_p) * rotate(key, *tables_q)).sum())

    # Angles are float32: about 500 * 6e-8 radians of error each.
    assert math.isclose(score(first, second), score(first + shift, second + shift), abs_tol=5e-3)


def test_fast_path_equals_the_reference_with_gradients() -> None:
    tables = rope_tables(torch.randint(0, 50, (2, 5)), 8, 1e4)
    x = torch.randn(2, 5, 3, 8, requires_grad=True)
    grad = torch.randn(2, 3, 5, 8).transpose(1, 2)  # attention hands back a strided gradient
    torch.testing.assert_close(rotate(x, *tables), rotate_reference(x, *tables), atol=1e-6, rtol=1e-6)
    fast = torch.autograd.grad(rotate(x, *tables), x, grad)
    torch.testing.assert_close(fast, torch.autograd.grad(rotate_reference(x, *tables), x, grad), atol=1e-6, rtol=1e-6)


def test_gradients_match_finite_differences() -> None:
    cos, sin = (table.double() for table in rope_tables(torch.tensor([[3, 9]]), 4, 1e4))
    x = torch.randn(1, 2, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rotate(x, cos, sin), (x,))


def test_low_precision_input_keeps_its_dtype() -> None:
    x = torch.randn(1, 3, 2, 8)
    tables = rope_tables(torch.tensor([[5, 6, 7]]), 8, 1e4)
    out = rotate(x.bfloat16(), *tables)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), rotate(x.bfloat16().float(), *tables), atol=0.02, rtol=0.01)

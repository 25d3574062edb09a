"""models/quantization/packing.py: hand-worked words, round trips for every width, byte equality with compressed-tensors."""

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from hypothesis import given, settings
from hypothesis import strategies as st

from models.quantization import packing


def random_codes(rows: int, cols: int, num_bits: int, seed: int) -> torch.Tensor:
    half = 1 << (num_bits - 1)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-half, half, (rows, cols), generator=generator).to(torch.int8)


def test_hand_worked_int8_word():
    """-128 -> 0x00, -127 -> 0x01, 0 -> 0x80, 127 -> 0xFF, lowest byte first: 0xFF800100."""
    words = packing.pack(torch.tensor([[-128, -127, 0, 127]], dtype=torch.int8), 8)
    assert words.dtype is torch.int32
    assert words.tolist() == [[0xFF800100 - (1 << 32)]]


def test_hand_worked_int4_word():
    """Codes -8..-1 are nibbles 0..7, value i at bits 4*i: 0x76543210."""
    words = packing.pack(torch.arange(-8, 0, dtype=torch.int8).reshape(1, 8), 4)
    assert words.tolist() == [[0x76543210]]


@settings(max_examples=80, deadline=None)
@given(rows=st.integers(1, 4), cols=st.integers(1, 70), num_bits=st.integers(1, 8), seed=st.integers(0, 2**31))
def test_unpack_inverts_pack_and_bytes_equal_the_library(rows, cols, num_bits, seed):
    codes = random_codes(rows, cols, num_bits, seed)
    words = packing.pack(codes, num_bits)
    assert words.numpy().tobytes() == pack_to_int32(codes, num_bits).numpy().tobytes()
    assert torch.equal(packing.unpack(words, num_bits, cols), codes)


def test_code_outside_the_width_is_refused():
    with pytest.raises(ValueError, match="4 bits hold -8 to 7"):
        packing.pack(torch.tensor([[8]], dtype=torch.int8), 4)


@pytest.mark.parametrize("num_bits", [0, 9])
def test_width_outside_1_to_8_is_refused(num_bits):
    with pytest.raises(ValueError, match="expected 1 to 8"):
        packing.pack(torch.zeros(1, 4, dtype=torch.int8), num_bits)


def test_wrong_word_count_is_refused():
    words = packing.pack(torch.zeros(2, 9, dtype=torch.int8), 8)
    with pytest.raises(ValueError, match="weight_shape and weight_packed disagree"):
        packing.unpack(words, 8, 13)


def test_wrong_dtype_is_refused():
    with pytest.raises(ValueError, match="expected int8"):
        packing.pack(torch.zeros(2, 4, dtype=torch.int32), 8)

"""FP8 codes against PyTorch's own, for every value that a 16-bit weight can have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trtspec.build.convert.e4m3 import Encode, Rescale, encode, values_of_codes
from trtspec.build.convert.elements import is_finite
from trtspec.engines.cpu.fp8 import dequantise, fake_quantise

TYPES = {"BF16": torch.bfloat16, "F16": torch.float16}
SCALES = [1.0, 3e-4, 0.017, 2.2321428e-6, 0.0017788388]


def finite_values(dtype: str) -> tuple[np.ndarray, torch.Tensor]:
    """Every finite value of a type, raw and as PyTorch sees it."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = torch.from_numpy(bits.view(np.int16)).view(TYPES[dtype])
    finite = torch.isfinite(values)
    return bits[finite.numpy()], values[finite]


def test_each_code_has_pytorchs_value() -> None:
    theirs = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(values_of_codes(), theirs, equal_nan=True)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1))
def test_float32_is_rounded_as_pytorch_rounds_it(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    theirs = torch.from_numpy(array).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert np.array_equal(encode(array), theirs)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scale", SCALES)
def test_unified_codes_round_twice_as_a_scale_without_dimensions_makes_pytorch(
    dtype: str, scale: float
) -> None:
    bits, values = finite_values(dtype)
    theirs = (values / torch.tensor(scale)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert np.array_equal(Encode(np.float32(scale), dtype, twice=True)(bits), theirs)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scale", SCALES)
def test_tensorrt_llm_codes_round_once(dtype: str, scale: float) -> None:
    bits, values = finite_values(dtype)
    theirs = (values.float() / torch.tensor(scale)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert np.array_equal(Encode(np.float32(scale), dtype, twice=False)(bits), theirs)


def test_the_two_roundings_differ() -> None:
    bits, _ = finite_values("BF16")
    once, twice = (Encode(np.float32(0.017), "BF16", twice=twice)(bits) for twice in (False, True))
    assert (once != twice).any()


def test_float32_weights_are_divided_and_rounded_once_either_way() -> None:
    weights = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    theirs = (weights / torch.tensor(0.009)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    for twice in (False, True):
        found = Encode(np.float32(0.009), "F32", twice=twice)(weights.numpy().view(np.uint32))
        assert np.array_equal(found, theirs)


def test_rescaling_to_the_same_scale_changes_no_code() -> None:
    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F], dtype=np.uint8)
    assert np.array_equal(Rescale(np.float32(0.25), np.float32(0.25))(codes), codes)


def test_rescaled_codes_are_the_nearest_to_their_values() -> None:
    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F], dtype=np.uint8)
    values = torch.from_numpy(codes).view(torch.float8_e4m3fn).float()
    theirs = (values * torch.tensor(0.1) / torch.tensor(0.3)).to(torch.float8_e4m3fn).view(torch.uint8)
    assert np.array_equal(Rescale(np.float32(0.1), np.float32(0.3))(codes), theirs.numpy())


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_a_code_that_is_not_a_number_is_not_finite(code: int) -> None:
    assert is_finite(np.array([0x7E, 0xFE, 0], dtype=np.uint8), "F8_E4M3")
    assert not is_finite(np.array([0, code], dtype=np.uint8), "F8_E4M3")


def test_each_row_is_scaled_by_its_own_scale_or_all_by_one() -> None:
    codes = torch.tensor([[1.0, 2.0], [4.0, -8.0]]).to(torch.float8_e4m3fn)
    assert dequantise(codes, torch.tensor(0.5)).tolist() == [[0.5, 1.0], [2.0, -4.0]]
    assert dequantise(codes, torch.tensor([0.5, 2.0])).tolist() == [[0.5, 1.0], [8.0, -16.0]]


def test_inputs_beyond_the_calibrated_range_saturate() -> None:
    x = torch.tensor([100.0, -1000.0, 1.0625 * 0.5])
    assert fake_quantise(x, 0.5).tolist() == [96.0, -224.0, 0.5]


def test_a_token_without_a_calibrated_scale_uses_its_own_range() -> None:
    x = torch.tensor([[448.0, 1.0], [0.448, 0.001]])
    alone = torch.cat([fake_quantise(row[None], None) for row in x])
    assert torch.equal(fake_quantise(x, None), alone)
    assert torch.allclose(alone, x, rtol=2**-4)
    assert fake_quantise(torch.zeros(1, 2), None).tolist() == [[0.0, 0.0]]

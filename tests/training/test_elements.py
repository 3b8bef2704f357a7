"""Differences of elements: decided by bits, shown as numbers."""

import math
import struct

import pytest
import torch

from m5ws.records.verdict import ElementDifferences
from m5ws.training.tools import compare_bits


def compare(a: torch.Tensor, b: torch.Tensor, first: int = 0) -> ElementDifferences:
    one, other = (bytearray(side.contiguous().view(-1).view(torch.uint8).numpy().tobytes()) for side in (a, b))
    return compare_bits.compare(one, other, str(a.dtype).removeprefix("torch."), first)


def test_values_are_counted_and_measured() -> None:
    a = torch.tensor([1.0, 2.0, -4.0, 0.0])
    b = torch.tensor([1.0, 2.5, 4.0, 1e-3])
    found = compare(a, b, first=100)
    assert (found.compared, found.differing, found.first) == (4, 3, 101)
    assert found.max_absolute == (8.0).hex() and found.max_relative == (2.0).hex()
    assert (found.zero_signs, found.nans, found.nan_in_one, found.same_values) == (0, 0, 0, False)
    assert found.first_a == "2.0 (0x40000000)" and found.first_b == "2.5 (0x40200000)"


def test_the_sign_of_zero_and_the_bits_of_nan_are_differences_of_their_own_kind() -> None:
    quiet, other = (torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001))
    zeros = compare(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0]))
    assert (zeros.differing, zeros.zero_signs, zeros.max_absolute, zeros.same_values) == (1, 1, None, True)
    nans = compare(quiet, other)
    assert (nans.differing, nans.nans, nans.max_absolute, nans.same_values) == (1, 1, None, True)
    one = compare(quiet, torch.tensor([1.0]))
    assert (one.differing, one.nan_in_one, one.max_absolute, one.same_values) == (1, 1, None, False)
    assert compare(quiet, quiet.clone()).differing == 0


@pytest.mark.parametrize(
    ("dtype", "a", "b", "absolute"),
    [
        (torch.bfloat16, 1.0, 1.5, 0.5),
        (torch.float16, 1.0, 1.5, 0.5),
        (torch.float64, 1.0, 1.0 + 2**-52, 2**-52),
        (torch.float8_e4m3fn, 1.0, 1.5, 0.5),
        (torch.float8_e5m2, 1.0, 2.0, 1.0),
        (torch.bool, 0, 1, 1.0),
        (torch.uint8, 3, 250, 247.0),
        (torch.uint16, 3, 65535, 65532.0),
        (torch.int64, -5, 5, 10.0),
        (torch.complex64, 1 + 1j, 1 + 2j, 1.0),
        (torch.complex128, 3j, 4, 5.0),
    ],
)
def test_every_type_of_element(dtype: torch.dtype, a: float, b: float, absolute: float) -> None:
    first, second = (torch.tensor([7, 7, 7]).to(dtype), torch.tensor([7, 7, 7]).to(dtype))
    exact = torch.complex128 if dtype.is_complex else torch.float64
    first[1:2], second[1:2] = (torch.tensor([value], dtype=exact).to(dtype) for value in (a, b))
    found = compare(first, second)
    assert (found.compared, found.differing, found.first) == (3, 1, 1)
    assert found.max_absolute == absolute.hex()


def test_infinities_are_as_far_apart_as_can_be() -> None:
    found = compare(torch.tensor([math.inf, 1.0]), torch.tensor([-math.inf, math.inf]))
    assert (found.differing, found.max_absolute, found.max_relative) == (2, "inf", "inf")


def test_stretches_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.randn(1000)
    b = a.clone()
    b[[3, 500, 998]] += torch.tensor([0.25, -8.0, 1.0])
    b[700] = -a[700]
    whole = compare(a, b, first=50)
    monkeypatch.setattr(compare_bits, "_AT_ONCE", 7)
    assert compare(a, b, first=50) == whole
    assert (whole.first, whole.differing, whole.compared) == (53, 4, 1000)
    assert whole.max_absolute == float((a.double() - b.double()).abs().max()).hex()


def test_the_bits_shown_are_those_stored() -> None:
    found = compare(torch.tensor([1, 2], dtype=torch.int32), torch.tensor([1, -2], dtype=torch.int32))
    assert found.first_b == f"-2 (0x{struct.unpack('<I', struct.pack('<i', -2))[0]:08x})"

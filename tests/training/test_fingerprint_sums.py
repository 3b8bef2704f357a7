"""Each way to compute a fingerprint gives the numbers that stored runs have: compiled code, and NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from m5ws.training.backends.base import Box, Piece, Span
from m5ws.training.fingerprint import batches, fingerprint, kernel, run_sums, tensor_sums

BYTES = 8192
NUMBERS = torch.arange(3000, dtype=torch.float64)
STORED = {
    "2070c9c872035778": Piece("fp32", (NUMBERS * NUMBERS / 7).to(torch.float32)),
    "d0b8dd0a3c1aa039": Piece("bf16 transposed", (NUMBERS / 3).to(torch.bfloat16).view(50, 60).t()),
    "03c9e9d312e8b6bc": Piece("int8", (NUMBERS % 251 - 125).to(torch.int8)),
    "677bf4934617026d": Piece("complex128", torch.complex(NUMBERS, -NUMBERS / 9)),
    "4840d0977e0d4e36": Piece("span", (NUMBERS / 11).to(torch.float32), Span(123_456_789_012)),
    "aeafa07136064c3c": Piece("columns", (NUMBERS / 13).view(100, 30), Box((200, 70), (50, 7), (100, 30))),
    "b7934d711b12e500": Piece(
        "box", (NUMBERS / 17).to(torch.float16).view(5, 4, 10, 15), Box((9, 8, 10, 40), (3, 2, 0, 21), (5, 4, 10, 15))
    ),
}
"""Fingerprints by the first version of m5ws that has them in stores, commit fae94f8."""


@pytest.mark.parametrize("value", STORED, ids=[piece.name for piece in STORED.values()])
def test_stored_fingerprints_keep_their_values(value: str) -> None:
    piece = STORED[value]
    assert fingerprint.fingerprints([piece], None).values == {piece.name: value}


@st.composite
def several_runs(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Runs within BYTES of memory, at any offset, with indices up to the largest: each without its sum."""
    found = list[tuple[int, ...]]()
    for _ in range(draw(st.integers(0, 5))):
        width, rows, length = draw(st.sampled_from([1, 2, 4, 8])), draw(st.integers(0, 5)), draw(st.integers(0, 200))
        offset = draw(st.integers(0, BYTES - width * rows * length))
        first, stride = draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, 2**64 - 1))
        found.append((offset, width, rows, length, first, stride))
    return found


@settings(max_examples=200, deadline=None)
@given(several_runs(), st.integers(0, 2**32))
def test_the_kernel_has_the_sums_of_numpy_at_each_level(found: list[tuple[int, ...]], seed: int) -> None:
    memory = np.frombuffer(np.random.default_rng(seed).bytes(BYTES), dtype=np.uint8)
    expected = run_sums.matrix([(memory.ctypes.data + offset, *rest, 0) for offset, *rest in found])
    run_sums.add_up_by_numpy(expected)
    for level, name in enumerate(kernel.levels()):
        sums = expected.copy()
        sums[:, run_sums.SUM] = 0
        kernel.sums(sums, level)
        assert (sums == expected).all(), name


def test_copies_in_another_order_are_read_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [(torch.randn(size, 3), Box((size, 8), (0, 2), (size, 3))) for size in (5000, 0, 7, 3000)]
    expected = tensor_sums.sums(parts)
    monkeypatch.setattr(batches, "_COPIES_BYTES", 10_000)
    assert tensor_sums.sums([(tensor.t().contiguous().t(), place) for tensor, place in parts]) == expected


@pytest.mark.parametrize(
    "rows",
    [np.zeros((1, 6), dtype=np.uint64), np.array([[8, 3, 1, 1, 0, 0, 0]]), np.array([[0, 4, 1, 1, 0, 0, 0]])],
    ids=["too short", "words of 3 bytes", "no address"],
)
def test_invalid_run_rows_and_levels_are_refused(rows: np.ndarray) -> None:
    with pytest.raises(ValueError, match="runs"):
        kernel.sums(rows.astype(np.uint64))
    with pytest.raises(ValueError, match="level"):
        kernel.sums(run_sums.matrix([]), len(kernel.levels()))


def test_a_tensor_with_released_memory_is_an_error() -> None:
    tensor = torch.ones(8)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="memory"):
        fingerprint.sums([tensor])

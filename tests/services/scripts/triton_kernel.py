"""Tests of Triton's kernel on the device of `triton_device`, against NumPy. tests/services/test_triton.py runs them."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from m5ws.training.backends.base import Box
from m5ws.training.fingerprint import batches, run_sums, tensor_sums, triton_sums
from tests.support.machine import triton_device

BYTES = 1 << 18
TILE = 1 << 12
"""The number of words of a tile here, so that the interpreter has several tiles in a second."""
DEVICE = triton_device.find() or pytest.fail("Triton runs on no device here")


@pytest.fixture(autouse=True, scope="module")
def small_tiles() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_sums, "TILE", TILE)
        yield


def sums_of(runs: list[tuple[int, ...]], memory: np.ndarray) -> None:
    """Check the sums of runs, whose addresses are offsets in `memory`, against the sums by NumPy."""
    assert all(offset + width * rows * length <= memory.size for offset, width, rows, length, *_ in runs)
    expected = run_sums.matrix([(memory.ctypes.data + offset, *rest, 0) for offset, *rest in runs])
    run_sums.add_up_by_numpy(expected)
    there = torch.from_numpy(memory).to(DEVICE)
    sums = run_sums.matrix([(there.data_ptr() + offset, *rest, 7) for offset, *rest in runs])
    triton_sums.add_up(sums, DEVICE)
    assert sums[:, run_sums.SUM].tolist() == expected[:, run_sums.SUM].tolist()


def random_memory(seed: int) -> np.ndarray:
    """Return BYTES of random memory from an address that is a multiple of 64 on."""
    memory = np.frombuffer(bytearray(np.random.default_rng(seed).bytes(BYTES + 64)), dtype=np.uint8)
    return memory[-memory.ctypes.data % 64 :][:BYTES]


@st.composite
def several_runs(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Runs within BYTES of memory, at any offset or at multiples of 16, with indices up to the largest."""
    runs = []
    for _ in range(draw(st.integers(0, 4))):
        width, length = draw(st.sampled_from([1, 2, 4, 8])), draw(st.integers(0, 3000))
        rows = draw(st.integers(0, min(20, BYTES // (width * max(1, length)))))
        offset = draw(st.integers(0, BYTES - width * rows * length)) // (step := draw(st.sampled_from([1, 16]))) * step
        first, stride = draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, 2**64 - 1))
        runs.append((offset, width, rows, length, first, stride))
    return runs


@settings(max_examples=10, deadline=None)
@given(several_runs(), st.integers(0, 2**32))
def test_any_runs_have_the_sums_of_numpy(runs: list[tuple[int, ...]], seed: int) -> None:
    sums_of(runs, random_memory(seed))


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("rows", "length"),
    [
        (1, TILE), (1, TILE + 1), (1, TILE - 1), (2, TILE), (1, 2 * TILE), (2, TILE - 1), (2, TILE // 2 + 3),
        (3, TILE // 3), (90, 100), (TILE, 1), (TILE + 5, 1), (1, 1), (0, TILE), (TILE, 0),
    ],
)  # fmt: skip
def test_sums_are_exact_at_the_ends_of_tiles_and_rows(width: int, rows: int, length: int) -> None:
    rest = (width, rows, length, 2**64 - 9, 2**63 + 5)
    sums_of([(0, *rest), (16, *rest), (width, *rest), (3, *rest)], random_memory(rows))


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32, torch.complex64, torch.complex128])
def test_shards_have_the_sums_of_the_host(dtype: torch.dtype) -> None:
    whole = torch.randn(6, 50, 40).mul(100).to(dtype)
    parts = []
    for rows, columns in ((slice(0, 6), slice(3, 40)), (slice(1, 5), slice(0, 40)), (slice(2, 3), slice(7, 8))):
        local = whole[rows, :, columns]
        box = Box((6, 50, 40), (rows.start, 0, columns.start), tuple(local.shape))
        parts += [(local, box), (local.contiguous(), box), (local.transpose(0, 2).contiguous().transpose(0, 2), box)]
    expected, on_device = tensor_sums.sums(parts), [(tensor.to(DEVICE), place) for tensor, place in parts]
    for copies_bytes in (batches._COPIES_BYTES, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batches, "_COPIES_BYTES", copies_bytes)
            assert batches.sums(on_device, partial(triton_sums.add_up, device=DEVICE), DEVICE) == expected
            assert batches.sums(on_device, run_sums.add_up, torch.device("cpu")) == expected


def test_the_kernel_is_loaded_on_the_tested_device() -> None:
    assert tensor_sums.load_kernel(DEVICE) is triton_sums

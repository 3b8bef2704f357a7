"""Sums of a fingerprint over words in the memory of a GPU, by a kernel in Triton.

It takes the runs of `run_sums`, and has the mix of `kernel.c`. One launch adds up all runs. A program adds up
a tile, which is a part of a run, into the run's sum. Integer addition modulo 2^64 has one result in any order.
Triton is no dependency of m5ws. It comes with torch for CUDA, and only `tensor_sums` imports this module.
"""

import subprocess

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from triton.errors import TritonError

from m5ws.training.fingerprint import run_sums

TILE = 1 << 16
"""The number of words of a tile: 8,192 tiles a GiB of bf16, several for each of a GPU's processors."""

_STEP_BYTES = tl.constexpr(2048)  # 16 bytes, the longest load, for each of the 128 threads of a program
_BYTEWISE_STEP = tl.constexpr(256)  # words
_INDEX = tl.constexpr(run_sums.INDEX)
_ADDRESS, _WIDTH, _ROWS, _LENGTH, _FIRST, _STRIDE, _SUM, _COLUMNS = (tl.constexpr(n) for n in range(run_sums.SUM + 2))


def find_obstacle(device: torch.device) -> str | None:
    """Return the reason that the kernel does not run on `device`, such as no C compiler; None if it runs."""
    word = torch.ones(1, dtype=torch.uint8, device=device)
    try:
        add_up(run_sums.matrix([(word.data_ptr(), 1, 1, 1, 0, 0, 0)]), device)
    except (TritonError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        return str(error)
    return None


def add_up(runs: run_sums.Runs, device: torch.device) -> None:
    """Set the sum of each run, by one launch; the memory of all runs is on `device`, and exists until this returns."""
    runs[:, run_sums.SUM] = 0
    tiles = _tiles(runs)
    if not len(tiles):
        return
    table = torch.from_numpy(runs).to(device, copy=True)
    with torch.cuda.device(table.get_device()):
        sum_tiles[(len(tiles),)](table, torch.from_numpy(tiles).to(device), TILE)
    runs[:] = table.cpu().numpy()


def _tiles(runs: run_sums.Runs) -> NDArray[np.int64]:
    """Return the tiles, one a row: the position of the run, and of the tile's first word in the run."""
    counts = (runs[:, run_sums.ROWS] * runs[:, run_sums.LENGTH]).astype(np.int64)
    per_run = -(-counts // TILE)
    owners = np.repeat(np.arange(len(counts)), per_run)
    numbers = np.arange(len(owners)) - np.repeat(np.cumsum(per_run) - per_run, per_run)
    return np.stack([owners, numbers * TILE], axis=1)


@triton.jit
def sum_tiles(runs: tl.tensor, tiles: tl.tensor, tile_words: tl.constexpr) -> None:
    """Add the sum of a tile to the sum of its run. `runs` and `tiles` point to tables of 64-bit integers."""
    tile = tiles + 2 * tl.program_id(0).to(tl.int64)
    run = runs + _COLUMNS * tl.load(tile)
    start = tl.load(tile + 1).to(tl.uint64)
    width, length, stride = tl.load(run + _WIDTH), tl.load(run + _LENGTH), tl.load(run + _STRIDE)
    address = tl.load(run + _ADDRESS) + start * width
    count = tl.minimum(tl.load(run + _ROWS) * length - start, tile_words).to(tl.int32)
    row = start // length
    index = (tl.load(run + _FIRST) + start + row * (stride - length)) * _INDEX
    # A row begins `stride` indices after the row before, instead of `length`: a jump. A tile has at most one end of a
    # row that is longer than the tile. Such a row counts as long as a tile, so that 32 bits have the rows of words.
    short = tl.minimum(length, tile_words).to(tl.int32)
    column = short - tl.minimum(length - start % length, tile_words).to(tl.int32)
    jump = tl.where(column + count > short, (stride - length) * _INDEX, 0)
    # The longest loads need addresses that are multiples of 16.
    width = width.to(tl.int32)
    whole = tl.where(address % 16 == 0, count - count * width % _STEP_BYTES // width, 0)
    total = _sum_bytewise(address, width, whole, count, index, jump, column, short)
    if width == 1:
        total += _sum_words(address, tl.uint8, _STEP_BYTES, whole, index, jump, column, short)
    elif width == 2:
        total += _sum_words(address, tl.uint16, _STEP_BYTES // 2, whole, index, jump, column, short)
    elif width == 4:
        total += _sum_words(address, tl.uint32, _STEP_BYTES // 4, whole, index, jump, column, short)
    else:
        total += _sum_words(address, tl.uint64, _STEP_BYTES // 8, whole, index, jump, column, short)
    tl.atomic_add(run + _SUM, total, sem="relaxed")


@triton.jit
def _sum_words(
    address: tl.tensor,
    word: tl.constexpr,
    step: tl.constexpr,
    end: tl.tensor,
    index: tl.tensor,
    jump: tl.tensor,
    column: tl.tensor,
    length: tl.tensor,
) -> tl.tensor:
    """Return the sum over the first `end` words of a tile, in steps."""
    places = tl.arange(0, step)
    words = tl.multiple_of(address.to(tl.pointer_type(word)), 16) + places
    # Carried from step to step: a product for each word would be a fifth more instructions.
    indices = index + places.to(tl.uint64) * _INDEX
    total = tl.zeros((step,), tl.uint64)
    if jump == 0:
        for start in range(0, end, step):
            total += _mix(indices + tl.load(words + start).to(tl.uint64))
            indices += step * _INDEX & 0xFFFFFFFFFFFFFFFF
    else:
        for start in range(0, end, step):
            rows = (start + places + column) // length
            total += _mix(indices + rows.to(tl.uint64) * jump + tl.load(words + start).to(tl.uint64))
            indices += step * _INDEX & 0xFFFFFFFFFFFFFFFF
    return tl.sum(total)


@triton.jit
def _sum_bytewise(
    address: tl.tensor,
    width: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    index: tl.tensor,
    jump: tl.tensor,
    column: tl.tensor,
    length: tl.tensor,
) -> tl.tensor:
    """Return the sum over the words of a tile from `begin` to `end`, at any address."""
    total = tl.zeros((_BYTEWISE_STEP,), tl.uint64)
    for start in range(begin, end, _BYTEWISE_STEP):
        places = start + tl.arange(0, _BYTEWISE_STEP)
        is_inside = places < end
        bits = index + places.to(tl.uint64) * _INDEX + ((places + column) // length).to(tl.uint64) * jump
        for byte in range(width):
            pointers = (address + (places * width + byte).to(tl.uint64)).to(tl.pointer_type(tl.uint8))
            bits += tl.load(pointers, mask=is_inside, other=0).to(tl.uint64) << (8 * byte)
        total += tl.where(is_inside, _mix(bits), 0)
    return tl.sum(total)


@triton.jit
def _mix(bits: tl.tensor) -> tl.tensor:
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return bits ^ (bits >> 31)

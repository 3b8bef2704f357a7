"""Fingerprints against a plain Python reference, for every kind of tensor and every sharding, by each way."""

import itertools
import math
import struct
from collections.abc import Iterator, Sequence
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from m5ws.training.backends.base import Box, Piece, Span
from m5ws.training.fingerprint import batches, fingerprint, kernel, run_sums, tensor_sums
from tests.support.machine import triton_device
from tests.support.records import kinds

MASK = (1 << 64) - 1


TRITON = triton_device.find()
WAYS = ["compiled", "numpy", *(["triton"] if TRITON else [])]
"""The last is tested by `make test` where there is a GPU, and by tests/services/test_triton.py elsewhere."""

Parts = Sequence[tuple[torch.Tensor, Span | Box]]


def by_triton(parts: Parts) -> list[int]:
    assert TRITON
    from m5ws.training.fingerprint import triton_sums

    return batches.sums(parts, partial(triton_sums.add_up, device=TRITON), TRITON)


@pytest.fixture(autouse=True, params=WAYS, scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compute in compiled code, by NumPy as without it, and by Triton as on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_sums, "add_up", kernel.sums if request.param == "compiled" else run_sums.add_up_by_numpy)
        if request.param == "triton":
            patch.setattr(tensor_sums, "sums", by_triton)
        yield


def reference_mix(bits: int, index: int) -> int:
    x = (bits + index * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def reference(tensor: torch.Tensor) -> str:
    """Words of the elements' size, at most 8 bytes, little-endian, each with its index in row-major order."""
    data = bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist())
    width = min(tensor.element_size(), 8)
    words = [int.from_bytes(data[i : i + width], "little") for i in range(0, len(data), width)]
    return f"{sum(reference_mix(word, i) for i, word in enumerate(words)) & MASK:016x}"


def whole(tensor: torch.Tensor) -> str:
    return fingerprint.fingerprints([Piece("t", tensor)], None).values["t"]


def from_bits(*bits: int) -> torch.Tensor:
    return torch.tensor([struct.unpack("<i", struct.pack("<I", b))[0] for b in bits], dtype=torch.int32).view(
        torch.float32
    )


@pytest.mark.parametrize("dtype", kinds.DTYPES, ids=str)
def test_a_fingerprint_equals_the_reference_for_every_dtype(dtype: torch.dtype) -> None:
    tensor = kinds.random((5, 7), dtype)
    assert whole(tensor) == reference(tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5),
        torch.empty(0),
        torch.empty(3, 0),
        torch.arange(12.0).view(3, 4).T,
        torch.arange(20)[::3],
        torch.ones(1).expand(4),
        torch.randn(1 << 15),
        torch.randn((1 << 15) + 1),
    ],
)
def test_a_fingerprint_equals_the_reference_for_every_layout(tensor: torch.Tensor) -> None:
    assert whole(tensor) == reference(tensor)


def test_a_fingerprint_depends_on_the_sign_of_zero_and_the_payload_of_nan() -> None:
    assert whole(torch.tensor([0.0])) != whole(torch.tensor([-0.0]))
    quiet, other = from_bits(0x7FC00000), from_bits(0x7FC00001)
    assert quiet.isnan().all() and other.isnan().all()
    assert whole(quiet) != whole(other)
    assert whole(quiet) == whole(quiet.clone())


@given(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=20), st.data())
def test_a_fingerprint_changes_if_two_elements_are_swapped(bits: list[int], data: st.DataObject) -> None:
    i, j = data.draw(st.integers(0, len(bits) - 1)), data.draw(st.integers(0, len(bits) - 1))
    swapped = list(bits)
    swapped[i], swapped[j] = bits[j], bits[i]
    assert (whole(from_bits(*bits)) == whole(from_bits(*swapped))) == (bits == swapped)


@given(st.integers(1, 200), st.lists(st.integers(0, 200), max_size=5))
def test_fingerprints_of_spans_add_up_to_the_whole_tensor(size: int, cuts: list[int]) -> None:
    tensor = torch.randn(size)
    edges = [0, *sorted(min(cut, size) for cut in cuts), size]
    pieces = [Piece("t", tensor[a:b], Span(a)) for a, b in itertools.pairwise(edges)]
    assert fingerprint.fingerprints(pieces, None).values["t"] == whole(tensor)


@settings(max_examples=50)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(1, 4),
    st.sampled_from([torch.float32, torch.bfloat16, torch.complex128]),
)
def test_fingerprints_of_boxes_add_up_to_the_whole_tensor(
    shape: list[int], dimension: int, ranks: int, dtype: torch.dtype
) -> None:
    dimension %= len(shape)
    tensor = torch.randn(shape).to(dtype)
    chunk = math.ceil(shape[dimension] / ranks)
    pieces = []
    for start in range(0, shape[dimension], chunk):
        part = tensor.narrow(dimension, start, min(chunk, shape[dimension] - start))
        offsets = tuple(start if d == dimension else 0 for d in range(len(shape)))
        pieces.append(Piece("t", part, Box(tuple(shape), offsets, tuple(part.shape))))
    assert fingerprint.fingerprints(pieces, None).values["t"] == whole(tensor)


def test_a_box_inside_a_box_is_fingerprinted_with_global_indices() -> None:
    tensor = torch.randn(5, 6, 7)
    inner = Box((5, 6, 7), (1, 2, 3), (2, 3, 4))
    flat = tensor.clone().view(-1)
    kept = torch.zeros(5, 6, 7, dtype=torch.bool)
    kept[1:3, 2:5, 3:7] = True
    one_by_one = [Piece("t", flat[i : i + 1], Span(i)) for i in kept.view(-1).nonzero().view(-1).tolist()]
    boxed = fingerprint.fingerprints([Piece("t", tensor[1:3, 2:5, 3:7], inner)], None)
    assert boxed == fingerprint.fingerprints(one_by_one, None)


def test_equal_copies_count_once() -> None:
    tensor = torch.randn(9)
    parts = [Piece("a", tensor[:4]), Piece("a", tensor[4:], Span(4))]
    replica = Piece("b", tensor, copy="replica")
    ranks = [fingerprint.local([*parts, replica]), fingerprint.local([parts[1], replica])]
    assert fingerprint.merge(ranks) == {"a": whole(tensor), "b": whole(tensor)}


def test_copies_that_differ_are_named_by_rank() -> None:
    tensor, other = torch.ones(4), torch.zeros(4)
    for kind in ("replica", "only"):
        ranks = [fingerprint.local([Piece("b", one, copy=kind)]) for one in (tensor, other)]
        assert fingerprint.merge(ranks) == {"b@0": whole(tensor), "b@1": whole(other)}


def test_a_replica_on_some_ranks_is_one_tensor() -> None:
    tensor = torch.ones(4)
    with_it, without = fingerprint.local([Piece("b", tensor, copy="replica")]), fingerprint.local([])
    found = fingerprint.merge([with_it, without, with_it, with_it])
    assert found == {"b": f"{whole(tensor)}@0,2-3"} and fingerprint.bits(found["b"]) == whole(tensor)


@st.composite
def copies(draw: st.DrawFn) -> list[list[Piece]]:
    """Tensors that random ranks have, whole, or cut into two parts that several ranks have, as in HSDP."""
    world = draw(st.integers(2, 5))
    ranks: list[list[Piece]] = [[] for _ in range(world)]
    for number in range(draw(st.integers(1, 4))):
        tensor = draw(st.sampled_from([torch.zeros(4), torch.arange(4.0), torch.ones(4, dtype=torch.bfloat16)]))
        cut = draw(st.booleans())
        for rank in draw(st.sets(st.integers(0, world - 1), min_size=1)):
            half = draw(st.sampled_from([0, 2])) if cut else None
            mine = tensor.clone() if half is None else tensor[half : half + 2].clone()
            place = Span() if half is None else Box((4,), (half,), (2,))
            ranks[rank].append(Piece(f"t{number}", mine, place, copy="only" if cut else "replica"))
    return ranks


@settings(max_examples=60, deadline=None)
@given(copies(), st.data())
def test_a_changed_or_missing_copy_changes_only_the_entry_of_its_tensor(
    ranks: list[list[Piece]], data: st.DataObject
) -> None:
    before = fingerprint.merge([fingerprint.local(pieces) for pieces in ranks])
    holders = [pieces for pieces in ranks if pieces]
    pieces = data.draw(st.sampled_from(holders))
    piece = data.draw(st.sampled_from(pieces))
    if data.draw(st.booleans()):
        pieces.remove(piece)
    else:
        words = piece.tensor.view(torch.uint8)
        words[data.draw(st.integers(0, words.numel() - 1))] ^= 1 << data.draw(st.integers(0, 7))
    after = fingerprint.merge([fingerprint.local(pieces) for pieces in ranks])
    differ = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    assert differ and {name.partition("@")[0] for name in differ} == {piece.name}


def test_taking_fingerprints_changes_no_tensor_and_draws_from_no_generator() -> None:
    torch.manual_seed(3)
    tensors = [torch.randn(1000), torch.randn(7, 5).to(torch.bfloat16).t(), torch.zeros(()), torch.empty(0)]
    before, generator = [tensor.clone() for tensor in tensors], torch.get_rng_state()
    fingerprint.fingerprints([Piece(str(number), tensor) for number, tensor in enumerate(tensors)], None)
    assert all(torch.equal(one, two) for one, two in zip(tensors, before, strict=True))
    assert torch.equal(torch.get_rng_state(), generator)


def test_torch_can_release_fingerprinted_memory() -> None:
    tensor = torch.ones(8)
    fingerprint.sums([tensor])
    assert tensor.untyped_storage().resizable()

"""A plain loader in memory: lists, Python's integers, no workers, no state."""

from collections.abc import Callable, Iterator
from typing import Any

_MASK = 2**64 - 1


def _mix(*parts: int) -> int:
    """Return the hash of one sample, in Python's integers."""
    value = 0
    for part in (parts[0] & _MASK, *parts[1:]):
        value = ((value ^ part) + 0x9E3779B97F4A7C15) & _MASK
        value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return value


def order(counts: list[int], seed: int, window: int, epoch: int) -> list[tuple[int, int]]:
    """Return the file and the row of each sample of an epoch."""
    files = sorted(range(len(counts)), key=lambda file: _mix(seed, epoch, file))
    made: list[tuple[int, int]] = []
    for start in range(0, len(files), window):
        samples = [(file, row) for file in files[start : start + window] for row in range(counts[file])]
        made += sorted(samples, key=lambda sample: _mix(seed, epoch, *sample))
    return made


def documents(shards: list[list[Any]], seed: int, window: int) -> Iterator[tuple[tuple[int, int, int], Any]]:
    """Yield (epoch, file, row) and the content of each document, epoch after epoch."""
    epoch = 0
    while True:
        for file, row in order([len(shard) for shard in shards], seed, window, epoch):
            yield (epoch, file, row), shards[file][row]
        epoch += 1


def packed(stream: Iterator[tuple[Any, Any]], length: int, extra: int, tokens: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield windows of the joined tokens of documents."""
    held: list[int] = []
    for _, document in stream:
        held += [int(token) for token in tokens(document)]
        while len(held) >= length + extra:
            yield held[: length + extra]
            held = held[length:]


def mixed(streams: list[Iterator[Any]], weights: list[int]) -> Iterator[Any]:
    """Yield the next sample of the stream that is furthest behind its share."""
    counts, total = [0] * len(streams), 0
    while True:
        total += 1
        behind = [weight * total - count * sum(weights) for weight, count in zip(weights, counts, strict=True)]
        chosen = behind.index(max(behind))
        counts[chosen] += 1
        yield next(streams[chosen])

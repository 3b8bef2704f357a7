"""Values in a trace: a fingerprint for a tensor, with its element type and shape, exact text for a number.

Nothing here changes a value, draws a random number or keeps a tensor alive.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from m5ws.records import exact
from m5ws.training import dataloader
from m5ws.training.compat.tensors import is_wrapper, tree_leaves
from m5ws.training.fingerprint import fingerprint

_ROWS = 512
"""Limit of a batch's samples; samples of larger batches are not listed."""


def named_digests(kind: str, values: Any) -> dict[str, str]:
    """Return the digests of nested values, named by `kind` and index: `input 0`, `input 1`."""
    leaves = tree_leaves(values)
    return digests({f"{kind} {place}": leaf for place, leaf in enumerate(leaves)})


def digests(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each tensor and plain value; of a sharded tensor, the text of this rank's part."""
    texts: dict[str, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, value in values.items():
        if not isinstance(value, torch.Tensor):
            if value is None or isinstance(value, (bool, int, float, str)):
                texts[name] = exact.encode(value) if isinstance(value, float) else repr(value)[:80]
            continue
        part = value.to_local() if isinstance(value, DTensor) else value
        if (reason := _unreadable(part)) is not None:
            texts[name] = f"not read: {reason}"
        else:
            tensors[name] = part.detach()
    sums = fingerprint.sums(list(tensors.values()))
    for (name, tensor), value in zip(tensors.items(), sums, strict=True):
        texts[name] = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} {value:016x}"
    return texts


def batch(value: Any) -> dict[str, str]:
    """Return the digest of a batch, and the digest of each sample: the elements of all tensors at one first index."""
    texts = {"batch": dataloader.digest(value)[:16]}
    leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, (torch.Tensor, np.ndarray)) and leaf.ndim]
    counts = {len(leaf) for leaf in leaves}
    if len(counts) != 1 or not 0 < (count := counts.pop()) <= _ROWS:
        return texts
    hosts = [leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return texts | {f"sample {row}": _row(hosts, row) for row in range(count)}


def _row(leaves: Iterable[Any], row: int) -> str:
    hashed = hashlib.blake2b(digest_size=8)
    for leaf in leaves:
        # As an array of one: types that torch lacks (text, dates) are still hashed by their bytes.
        dataloader.update(hashed, leaf[row : row + 1])
    return hashed.hexdigest()


def _unreadable(tensor: torch.Tensor) -> str | None:
    """Return the reason why a tensor's bits cannot be read here, None if they can."""
    if is_wrapper(tensor):
        return type(tensor).__name__
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        return f"{str(tensor.layout).removeprefix('torch.')}, quantized, nested or without data"
    return None

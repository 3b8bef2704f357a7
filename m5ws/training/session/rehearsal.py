"""A rehearsal of the restore of the script's own objects, on copies: a restore that would fail is refused now.

Invariant: the training does not change. Only copies load a state, and generators that they draw from are restored.
"""

import copy
import gc
import sys
from collections.abc import Iterable, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from m5ws.records import codec
from m5ws.training.backends.base import Plain
from m5ws.training.state import plain_state, rng
from m5ws.training.state.plain_state import StateError

_MOST_OBJECTS = 20_000
_MOST_BYTES = 64 * 2**20
_SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType)
"""Types that `copy.deepcopy` does not copy."""


def rehearse(objects: Mapping[str, Any], states: Mapping[str, Plain], known: Iterable[object]) -> None:
    """Let a copy of each object load its own state. Raises StateError if one fails, or then has another state.

    The objects `known`, such as a scheduler's optimizer, are not copied. Objects that are large, have shards or cannot
    be copied are left out.
    """
    before = rng.capture({})
    kept = {id(item): item for item in known}
    for name, item in objects.items():
        if not any(plain_state.taken(states[name])) and _is_small(item, kept.keys()):
            _reload(name, item, states[name], kept)
    rng.restore(before, {})


def _reload(name: str, item: Any, state: Plain, kept: Mapping[int, object]) -> None:
    try:
        copied = copy.deepcopy(item, dict(kept))
    except Exception:  # noqa: BLE001  # the script's objects raise anything; objects that cannot be copied are left out
        return
    try:
        copied.load_state_dict(plain_state.decode(state))
        restored = plain_state.encode(copied.state_dict(), name)
    except Exception as error:
        raise StateError(
            f"{name} does not accept the state that it returns: {error!r}",
            hint=f"A resume needs a load_state_dict of {name} that accepts the result of its state_dict.",
        ) from error
    # As bytes: NaN is not equal to itself.
    if codec.encode_plain(restored) != codec.encode_plain(state):
        raise StateError(
            f"the state_dict of {name} is different after load_state_dict",
            hint="After load_state_dict(state), state_dict() must return an equal state.",
        )


def _is_small(item: object, known: Iterable[int]) -> bool:
    """Return True if an object is small enough to copy."""
    seen, left, size = set(known), [item], 0
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, _SHARED):
            continue
        seen.add(id(value))
        size += value.nbytes if isinstance(value, (torch.Tensor, np.ndarray)) else sys.getsizeof(value)
        if len(seen) > _MOST_OBJECTS or size > _MOST_BYTES:
            return False
        left += gc.get_referents(value)
    return True

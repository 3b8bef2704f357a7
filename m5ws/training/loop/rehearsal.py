"""A restore of the script's own objects, rehearsed on copies: one that would fail at a resume is refused now.

Invariant: the training is as it was: what loads a state is a copy, and generators that it draws from are put back.
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
"""What `copy.deepcopy` does not copy."""


def rehearse(objects: Mapping[str, Any], states: Mapping[str, Plain], known: Iterable[object]) -> None:
    """Have a copy of each object load its own state. Raises StateError for one that fails, or then has another state.

    The objects `known`, as a scheduler's optimizer, are not copied. What is large, has shards or cannot be copied is
    left out.
    """
    before = rng.capture({})
    kept = {id(one): one for one in known}
    for name, item in objects.items():
        if not any(plain_state.taken(states[name])) and _is_small(item, kept.keys()):
            _take_back(name, item, states[name], kept)
    rng.restore(before, {})


def _take_back(name: str, item: Any, state: Plain, kept: Mapping[int, object]) -> None:
    try:
        copied = copy.deepcopy(item, dict(kept))
    except Exception:  # noqa: BLE001  # the script's objects raise anything; what cannot be copied is not tried
        return
    try:
        copied.load_state_dict(plain_state.decode(state))
        again = plain_state.encode(copied.state_dict(), name)
    except Exception as error:
        raise StateError(
            f"{name} does not take back the state that it gives: {error!r}",
            hint=f"A resume needs load_state_dict of {name} to take what its state_dict returns.",
        ) from error
    if not _equal(again, state):
        raise StateError(
            f"the state_dict of {name} is another one after load_state_dict was given it",
            hint="What state_dict returns is to depend on what load_state_dict was given alone.",
        )


def _equal(one: Plain, other: Plain) -> bool:
    # As bytes: NaN is not equal to itself.
    return codec.encode_plain(one) == codec.encode_plain(other)


def _is_small(item: object, known: Iterable[int]) -> bool:
    """Return True if an object is small enough to copy."""
    seen, left, size = set(known), [item], 0
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, _SHARED):
            continue
        seen.add(id(one))
        size += one.nbytes if isinstance(one, (torch.Tensor, np.ndarray)) else sys.getsizeof(one)
        if len(seen) > _MOST_OBJECTS or size > _MOST_BYTES:
            return False
        left += gc.get_referents(one)
    return True

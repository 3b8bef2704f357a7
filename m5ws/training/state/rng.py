"""The random number generators of a rank: seeded, captured, digested and restored one by one.

Each has a name, so that a resume that differs names the generator that was used once too often.
"""

import hashlib
import random
from collections.abc import Mapping

import numpy as np
import torch

from m5ws.records import codec
from m5ws.training.state import plain_state
from m5ws.training.state.plain_state import Plain

Named = Mapping[str, torch.Generator]
"""Generators beyond the global generators, by name: the loader's, and the script's registered generators."""


def seed_all(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators, on all devices."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture(named: Named) -> dict[str, Plain]:
    """Return every generator's state as plain data, by name. Draws nothing."""
    return encode(read(named))


def read(named: Named) -> dict[str, object]:
    """Return every generator's state by name, as its library returns it. Draws nothing, and is fast."""
    # In the legacy form, which is a tuple of plain values; the other form is a nested dictionary.
    states: dict[str, object] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    return states | {name: generator.get_state() for name, generator in named.items()}


def encode(states: Mapping[str, object]) -> dict[str, Plain]:
    """Return states that `read` returned, as plain data."""
    return {name: plain_state.encode(state, f"generator {name}") for name, state in states.items()}


def restore(states: Mapping[str, Plain], named: Named) -> None:
    """Set every generator to its captured state. Raises RestoreError if a captured generator does not exist here."""
    for name, stored in states.items():
        state = plain_state.decode(stored)
        if name == "python":
            random.setstate(state)
        elif name == "numpy":
            np.random.set_state(state)
        elif name == "torch":
            torch.set_rng_state(state)
        elif name == "cuda" and torch.cuda.is_available():
            torch.cuda.set_rng_state(state)
        elif name in named:
            named[name].set_state(state)
        else:
            raise plain_state.RestoreError(
                f"the checkpoint has the state of generator {name!r}, which does not exist now"
            )


def digests(states: Mapping[str, Plain]) -> dict[str, str]:
    """Return 16 hex digits for each captured state, by name."""
    return {
        name: hashlib.blake2b(codec.encode_plain(state), digest_size=8).hexdigest() for name, state in states.items()
    }

"""The random number generators of a rank: seeded, captured, digested and restored one by one.

Each has a name, so that a resume that differs names the generator that was used once too often.
"""

import hashlib
import random
from collections.abc import Collection, Mapping

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
    states |= {name: getattr(torch, name).get_rng_state() for name in devices()}
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
        elif name in devices():
            getattr(torch, name).set_rng_state(state)
        elif name in named:
            named[name].set_state(state)
        else:
            raise plain_state.RestoreError(
                f"the checkpoint has the state of generator {name!r}, which does not exist now"
            )


def on_device(
    states: Mapping[str, Plain], captured: Collection[str], present: Collection[str]
) -> tuple[dict[str, Plain], dict[str, int], list[str]]:
    """Return states with the device generators `captured`, for a process with the device generators `present`.

    The states are without generators of absent devices. A generator that the capture lacks has a seed by its name: the
    first 63 bits of the BLAKE2b digest of the CPU generator's state. The list has one line for each difference.
    """
    absent, new = set(states).intersection(captured).difference(present), set(present).difference(states)
    seed = hashlib.blake2b(codec.encode_plain(states["torch"]), digest_size=8).digest()
    changes = [f"generator {name} is left out: there is no such device" for name in sorted(absent)]
    changes += [f"generator {name} is seeded from the state of generator torch" for name in sorted(new)]
    kept = {name: state for name, state in states.items() if name not in absent}
    return kept, dict.fromkeys(new, int.from_bytes(seed, "big") >> 1), changes


def devices() -> tuple[str, ...]:
    """Return the devices of this process with a generator of their own, which are used, as modules of torch."""
    device = torch.accelerator.current_accelerator()
    if device is None or not torch.accelerator.is_available():
        return ()
    module = torch.get_device_module(device)
    is_used = not hasattr(module, "is_initialized") or module.is_initialized()
    return (device.type,) if is_used and hasattr(module, "get_rng_state") else ()


def seed_devices(seeds: Mapping[str, int]) -> None:
    """Seed generators of devices, by name."""
    for name, seed in seeds.items():
        getattr(torch, name).manual_seed(seed)


def digests(states: Mapping[str, Plain]) -> dict[str, str]:
    """Return 16 hex digits for each captured state, by name."""
    return {
        name: hashlib.blake2b(codec.encode_plain(state), digest_size=8).hexdigest() for name, state in states.items()
    }

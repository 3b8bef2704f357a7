"""What an optimizer has beside tensors of its own: parameter groups, and numbers, lists and mappings by parameter.

Values by parameter that are the same on all ranks, as counts of steps are, hold for any number of ranks; the others
are a rank's own.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from m5ws import codec
from m5ws.repository.objects import Objects
from m5ws.training import control, plain
from m5ws.training.backend import Plain
from m5ws.training.plain import RestoreError

State = Iterable[tuple[str, dict[str, Any]]]
"""Each parameter's name, and its state in the optimizer, live."""
Extras = dict[str, dict[str, Plain]]
"""By parameter and key, what is no tensor, encoded."""


def groups(optimizer: torch.optim.Optimizer | None) -> Plain:
    """Return the settings of the parameter groups. Raises StateError."""
    if optimizer is None:
        return []
    found = [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for group in optimizer.param_groups
    ]
    return plain.encode(found, "optimizer.param_groups")


@torch.no_grad()
def restore_groups(optimizer: torch.optim.Optimizer, stored: Plain) -> None:
    """Give the parameter groups their settings. Raises RestoreError if there are others."""
    found = plain.decode(stored)
    if len(found) != len(optimizer.param_groups):
        present = len(optimizer.param_groups)
        raise RestoreError(f"the checkpoint has {len(found)} parameter groups, the optimizer has {present}")
    for group, values in zip(optimizer.param_groups, found, strict=True):
        for key, value in values.items():
            # A tensor stays the tensor it is: a compiled step, or a scheduler, holds on to it.
            if isinstance(group.get(key), torch.Tensor) and isinstance(value, torch.Tensor):
                group[key].copy_(value)
            else:
                group[key] = value


def extras(state: State) -> Extras:
    """Return what is no tensor. Raises StateError."""
    return {
        name: {
            key: plain.encode(value, f"optimizer.{name}.{key}")
            for key, value in values.items()
            if not isinstance(value, torch.Tensor)
        }
        for name, values in state
    }


def restore_extras(state: State, *stored: Mapping[str, Mapping[str, Plain]]) -> None:
    """Put extras back, those of a later argument over those of an earlier one. Raises RestoreError."""
    for name, values in state:
        for side in stored:
            values |= {key: plain.decode(value) for key, value in side.get(name, {}).items()}


def parted(found: Extras, objects: Objects, group: "torch.distributed.ProcessGroup | None") -> tuple[Extras, Extras]:
    """Return extras in two: those that all ranks have alike, and this rank's own; collective."""
    digests = {
        (name, key): objects.digest(codec.encode_plain(value))
        for name, values in found.items()
        for key, value in values.items()
    }
    ranks = control.gather(digests, group)
    alike = {place for place, digest in digests.items() if all(rank.get(place) == digest for rank in ranks)}

    def those(wanted: bool) -> Extras:
        return {
            name: {key: value for key, value in values.items() if ((name, key) in alike) is wanted}
            for name, values in found.items()
        }

    return those(True), those(False)

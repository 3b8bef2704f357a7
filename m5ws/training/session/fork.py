"""The first session of a fork: its work besides restoring its parent's checkpoint.

Weights, optimizer state and position are the checkpoint's, and are verified before anything changes here. Settings
(learning rate, betas, the schedule's constants) are the script's where the script has changed. Each change is a notice
in the ledger.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from m5ws.errors import UsageError
from m5ws.records.run import Parent
from m5ws.training.compat import facts, schedules
from m5ws.training.runtime.context import ActiveRank
from m5ws.training.state import rng

_OF_THE_SCHEDULE = ("lr", "initial_lr")
_LISTED = 8


def named_schedulers(schedulers: Sequence[Any]) -> dict[str, Any]:
    """Return the schedulers of a session by their names in a checkpoint."""
    if len(schedulers) == 1:
        return {"scheduler": schedulers[0]}
    return {f"scheduler.{number}": scheduler for number, scheduler in enumerate(schedulers)}


def is_scheduler(name: str) -> bool:
    """Return True for the name of a scheduler in a checkpoint."""
    return name.partition(".")[0] == "scheduler"


def is_restarted(active: ActiveRank, name: str) -> bool:
    """Return True if an object of a session, by its name in the checkpoint, is not restored in this attempt."""
    origin = active.context.parent
    return origin is not None and is_scheduler(name) and "schedule" in origin.restart


class Fork:
    """A fork's session: made before its parent's checkpoint is restored, applied after that."""

    def __init__(
        self,
        active: ActiveRank,
        origin: Parent,
        optimizers: Sequence[Any],
        schedulers: Sequence[Any],
        generators: Mapping[str, torch.Generator],
        of_data: Mapping[str, torch.Generator],
    ) -> None:
        facts.require(schedules.MOVED if schedulers else ())
        self._active = active
        self._parent = origin
        self._optimizers = optimizers
        self._schedulers = schedulers
        self._named = {**of_data, **generators}
        self._of_data = set(of_data)
        self._generators: dict[str, Any] = {}
        self._groups: list[dict[str, Any]] = []
        self._schedules: list[dict[str, Any]] = []

    def prepare(self, total_steps: int) -> None:
        """Record the script's settings. Raises UsageError if no step is left to do."""
        if total_steps <= self._parent.step:
            raise UsageError(
                f"the run starts after step {self._parent.step} and its total_steps is {total_steps}: no step is left. "
                "Increase total_steps, or start from an earlier checkpoint"
            )
        self._generators = rng.capture(self._named)
        self._groups = [dict(_settings(group)) for group in _groups(self._optimizers)]
        self._schedules = [copy.deepcopy(scheduler.state_dict()) for scheduler in self._schedulers]

    def apply(self) -> None:
        """Apply the settings that are not the checkpoint's, with a notice in the ledger. Draws no random numbers."""
        changes: list[str] = []
        if "schedule" in self._parent.restart:
            changes += self._restart_schedule()
        elif self._parent.settings == "script":
            changes += self._move_schedule()
        if self._parent.settings == "script":
            changes += self._take_settings()
        changes += self._restart_generators()
        if changes and self._active.rank == 0:
            more = [f"and {len(changes) - _LISTED} more"] if len(changes) > _LISTED else []
            self._active.notice("fork", "; ".join(changes[:_LISTED] + more), self._parent.step)

    def _restart_generators(self) -> Iterator[str]:
        """Set generators back to the script's seeds; the loader's own belong to the data."""
        states = self._generators if "generators" in self._parent.restart else {}
        states = {name: state for name, state in states.items() if name not in self._of_data}
        if states:
            yield "generators restart from the seeds of the script"
        if "data" in self._parent.restart:
            states |= {name: self._generators[name] for name in self._of_data}
            yield "the data restarts"
        rng.restore(states, self._named)

    # --- the optimizer's settings

    def _take_settings(self) -> Iterator[str]:
        """Give each parameter group the script's settings, but for the settings that the schedule sets."""
        for number, (group, own) in enumerate(zip(_groups(self._optimizers), self._groups, strict=True)):
            for key, value in own.items():
                if not (self._schedulers and key in _OF_THE_SCHEDULE) and not _same(group.get(key), value):
                    yield f"{key} of group {number}: {_shown(value)} (in the checkpoint {_shown(group.get(key))})"
                    _assign(group, key, value)

    # --- the schedule

    def _restart_schedule(self) -> Iterator[str]:
        if not self._schedulers:
            yield "there is no schedule to restart"
            return
        for scheduler, schedule in zip(self._schedulers, self._schedules, strict=True):
            scheduler.load_state_dict(copy.deepcopy(schedule))
        for group, own in zip(_groups(self._optimizers), self._groups, strict=True):
            for key in _OF_THE_SCHEDULE:
                if key in own:
                    _assign(group, key, own[key])
        yield "the schedule restarts"

    def _move_schedule(self) -> Iterator[str]:
        """Let each schedule of the script continue at the checkpoint's position, if it is another schedule."""
        before = [_shown(group.get("lr")) for group in _groups(self._optimizers)]
        for scheduler, schedule in zip(self._schedulers, self._schedules, strict=True):
            if hasattr(scheduler, "last_batch_iteration"):
                # The state of DeepSpeed's schedules is the position alone.
                scheduler.step(scheduler.last_batch_iteration)
            elif schedules.has_rates(scheduler):
                self._place(scheduler, schedule)
            else:
                yield (
                    f"the schedule is the checkpoint's, not the script's: {type(scheduler).__name__} does not tell its "
                    "learning rate at a position (`--restart schedule` begins the script's)"
                )
        for number, (was, group) in enumerate(zip(before, _groups(self._optimizers), strict=True)):
            if _shown(group.get("lr")) != was:
                yield f"lr of group {number}: {_shown(group['lr'])} by the script's schedule (in the checkpoint {was})"

    def _place(self, scheduler: Any, schedule: Mapping[str, Any]) -> None:
        """Put the script's schedule at its present position, and set the learning rates of that position."""
        now = scheduler.state_dict()
        constants = {key for key in schedule if key not in schedules.POSITION and key != "lr_lambdas"}
        function = isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR)
        if not function and all(_same(now.get(key), schedule[key]) for key in constants):
            return  # It is the same schedule: its own recursion has other last bits than the closed form.
        position = {key: now[key] for key in schedules.POSITION if key in now}
        scheduler.load_state_dict(copy.deepcopy(dict(schedule)) | position)
        rates = schedules.rates(scheduler)
        # With several optimizers, a schedule sets the rates of one optimizer.
        planned = {id(group) for group in getattr(getattr(scheduler, "optimizer", None), "param_groups", ())}
        groups = list(zip(_groups(self._optimizers), self._groups, strict=True))
        if len(self._optimizers) > 1:
            groups = [(group, own) for group, own in groups if id(group) in planned]
        for (group, own), rate in zip(groups, rates, strict=True):
            if "initial_lr" in own:
                _assign(group, "initial_lr", own["initial_lr"])
            _assign(group, "lr", rate)
        schedules.set_last_rates(scheduler, rates)


def _groups(optimizers: Sequence[Any]) -> list[dict[str, Any]]:
    return [group for optimizer in optimizers if optimizer is not None for group in optimizer.param_groups]


def _settings(group: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in group.items():
        if key not in ("params", "param_names"):
            yield key, value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)


def _assign(group: dict[str, Any], key: str, value: Any) -> None:
    present = group.get(key)
    # A tensor keeps its identity: a compiled step, or a scheduler, holds a reference to it.
    if isinstance(present, torch.Tensor):
        present.fill_(value) if not isinstance(value, torch.Tensor) else present.copy_(value)
    else:
        group[key] = value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return _shown(a) == _shown(b)
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        # A restored value may be a list instead of a tuple, or the reverse.
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _shown(value: Any) -> str:
    return repr(value.tolist() if isinstance(value, torch.Tensor) else value)

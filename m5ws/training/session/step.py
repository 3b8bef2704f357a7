"""One step of the loop, as the script uses it: batches in, exact scalars out."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from m5ws.errors import UsageError
from m5ws.training.dataloader import Feed
from m5ws.training.runtime.phases import Phases
from m5ws.training.state import scalars


class Step:
    """One step of the loop, yielded by `session.steps()`.

    `number` counts from 1, also in a resumed attempt. `tokens` is the number of tokens recorded in this step so far.
    """

    def __init__(self, number: int, feed: Feed | None, recording: bool, phases: Phases | None = None) -> None:
        self.number = number
        self.tokens = 0
        self._feed = feed
        self._recording = recording
        self._phases = phases
        self._values: dict[str, scalars.Reader | str] = {}

    def next_batch(self) -> Any:
        """Return the registered loader's next batch; any number of times a step.

        After the last batch of an epoch the next epoch begins: the session calls `set_epoch`, and creates an iterator.
        Raises UsageError without a loader, EmptyLoader.
        """
        if self._feed is None:
            raise UsageError(
                "step.next_batch() needs a data loader", hint="Register one: m5ws.session(…, loader=loader)."
            )
        return self._feed.next()

    def record(self, *, tokens: int = 0, **quantities: Any) -> None:
        """Record exact scalars of this rank by name: numbers, or tensors of one element; nothing waits for the device.

        `tokens` adds to the step's count. A scalar recorded again replaces the earlier scalar.
        """
        self.tokens += tokens
        if self._recording:
            for name, value in quantities.items():
                self._values[name] = scalars.take(name, value)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name a part that takes longer than a step, such as an evaluation: `with step.phase("evaluation"):`.

        A rank without progress is ended as stuck. The time limit of each phase is learnt from its own durations.
        """
        with self._phases.inside(name, self.number - 1) if self._phases is not None else nullcontext():
            yield

    def quantities(self) -> dict[str, str]:
        """Return the recorded values as exact text; waits for copies from a device."""
        return {name: value if isinstance(value, str) else value() for name, value in self._values.items()}

    @property
    def is_on_host(self) -> bool:
        """True if all recorded values are on the host already."""
        return all(isinstance(value, str) for value in self._values.values())

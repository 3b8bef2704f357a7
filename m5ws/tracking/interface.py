"""Interfaces of an experiment tracker."""

from typing import Protocol

from m5ws.records.verdict import JointVerdict, Verdict


class Following(Protocol):
    """A run being delivered to a tracker, by a process that cannot fail or slow the run."""

    def wake(self) -> None:
        """Announce new events in the run's ledger: until then, nothing is read."""

    def close(self, timeout_s: float) -> bool:
        """Say that the run is over; return whether all of it was delivered within `timeout_s` seconds."""

    @property
    def problem(self) -> str:
        """What was not delivered, why, and the command that does it later; empty if there is nothing to say."""


class Tracker(Protocol):
    """Shows runs in a tool of its own (MLflow), as a follower of the ledger: never a source of truth."""

    def migrate(self) -> None:
        """Make an embedded tracker ready, before runs start in parallel; milliseconds when it is. Raises M5Error."""

    def environment(self) -> dict[str, str]:
        """Return the variables by which a script that uses the tracker itself finds the same one."""

    def follow(self, run: str) -> Following:
        """Deliver a run's ledger as it grows."""

    def catch_up(self, run: str) -> Following:
        """Deliver what there is of a run's ledger, once."""

    def write_verdict(self, verdict: Verdict) -> None:
        """Show a published verdict on the pages of all its runs. Raises M5Error if the tracker does not answer."""

    def write_joint(self, joint: JointVerdict) -> None:
        """Show a published joint verdict on the run's page. Raises M5Error if the tracker does not answer."""

    def resolve(self, text: str) -> str | None:
        """Return the run that the tracker's own id or page URL stands for, or None. Raises M5Error as above."""

    def script_metrics(self, run: str) -> dict[str, list[tuple[int, str]]]:
        """Return what the script logged itself: name to (step, `float.hex()`), sorted, each once. Raises M5Error."""

    def ui_url(self, port: int) -> str:
        """Return where the tracker's UI is, or will be when `ui_argv(port)` runs."""

    def ui_argv(self, port: int) -> tuple[str, ...]:
        """Return the command that serves the UI on this machine's loopback; empty if a server is there already."""

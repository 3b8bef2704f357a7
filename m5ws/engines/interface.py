"""The port of an engine: a scheduler, or a list of hosts."""

from typing import Literal, Protocol

import msgspec

from m5ws.errors import M5Error

Standing = Literal["queued", "running", "ended", "unknown"]


class EngineUnavailable(M5Error):
    """An engine does not answer, or refuses a job."""


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A job to render. `agent` is the command of the agent on each node; the job adds the place of the node."""

    name: str
    run: str
    nodes: int
    agent: tuple[str, ...]


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job, as its engine reports it. `text` is the engine's own word, `reason` why the job waits.

    `unknown`: the engine has no such job any more, or never had it.
    """

    standing: Standing
    text: str = ""
    reason: str = ""


class NodeOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The output of a command on one node, as the engine names the node; or the `problem` if there is none."""

    node: str
    text: str = ""
    problem: str = ""


class Engine(Protocol):
    """An engine with the settings of one cluster. Each method raises EngineUnavailable."""

    def render(self, request: JobRequest) -> str:
        """Return the script of a job, without any I/O."""

    def check(self, request: JobRequest, script: str) -> None:
        """Raise EngineUnavailable if the engine does not answer, or would not accept the job. Nothing is started."""

    def submit(self, request: JobRequest, script: str, after: str | None = None) -> str:
        """Start a job, and return its id in the engine. The caller may be gone before the job begins.

        An engine whose user submits a file returns the command for it.

        The job waits for the end of the job with the id `after`, whatever its end is.
        """

    def state(self, name: str) -> JobState:
        """Return the state of a job."""

    def run(self, words: tuple[str, ...], nodes: int) -> list[NodeOutput]:
        """Run a command on each of a number of nodes, wait for all ends, and return the outputs.

        An exit status above 1 is a problem.
        """

    def cancel(self, name: str) -> None:
        """Remove a job that waits, and signal SIGTERM to the agents of a job that runs."""

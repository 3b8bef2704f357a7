"""SkyPilot and dstack, by a task file that its user submits: m5ws writes the file, and asks neither program anything.

Never run with either program. On each machine, a process starts the agent again, as on a list of hosts. After the loss
of a machine, the program itself starts the task again, if keys in `task` request this.
"""

import shlex
import signal
from pathlib import Path
from typing import Any

import msgspec

from m5ws import secret_gate
from m5ws.config.settings import DstackCluster, SkyPilotCluster
from m5ws.engines import documents, starts
from m5ws.engines.interface import EngineUnavailable, JobRequest, JobState, NodeOutput
from m5ws.errors import UsageError

SUBMIT = {"skypilot": ("sky", "jobs", "launch"), "dstack": ("dstack", "apply", "-f")}
"""The command of each program that submits a file."""


class TaskFile(msgspec.Struct, frozen=True):
    """`Engine` with the settings of a program, and the folder of task files."""

    settings: SkyPilotCluster | DstackCluster
    folder: Path = Path()

    def render(self, request: JobRequest) -> str:
        """As `Engine.render`: the task file. Raises SecretText, and UsageError for a key in `task` that m5ws writes."""
        own = self.settings
        secret_gate.refuse(own, "the cluster")
        secret_gate.refuse({"agent": request.agent}, "the job")
        agent = starts.command(own.python, request.agent, signal.SIGTERM, own.restarts)
        keys = self._keys(request, "\n".join((*own.setup, f"exec {shlex.join(agent)}\n")))
        if double := ", ".join(sorted(own.task.keys() & keys.keys())):
            raise UsageError(f"task in [clusters] has {double}, which m5ws writes", hint="Remove the key from task.")
        return documents.write(keys | own.task)

    def _keys(self, request: JobRequest, script: str) -> dict[str, Any]:
        """Return the keys of the file that m5ws writes.

        https://docs.skypilot.co/en/stable/reference/yaml-spec.html, https://dstack.ai/docs/reference/dstack.yml/task.
        """
        if isinstance(self.settings, SkyPilotCluster):
            return {"name": request.name, "num_nodes": request.nodes, "run": script}
        # The default shell of an image may be another shell.
        dstack = {"type": "task", "name": request.name, "nodes": request.nodes, "shell": "bash"}
        return dstack | {"commands": [script]}

    def check(self, request: JobRequest, script: str) -> None:
        """Do nothing: the program judges the file when its user submits it."""

    def submit(self, request: JobRequest, script: str, after: str | None = None) -> str:
        """Write the file, and return the command that submits the file."""
        assert after is None  # There is no job to prefetch.
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{request.name}.yaml"
        path.write_text(script, encoding="utf-8")
        return shlex.join((*SUBMIT[self._name], str(path)))

    def state(self, name: str) -> JobState:
        raise self._unasked()

    def run(self, words: tuple[str, ...], nodes: int) -> list[NodeOutput]:
        raise self._unasked()

    def cancel(self, name: str) -> None:
        raise self._unasked()

    @property
    def _name(self) -> str:
        return str(self.settings.__struct_config__.tag)

    def _unasked(self) -> EngineUnavailable:
        return EngineUnavailable(f"m5ws does not ask {self._name} about jobs")

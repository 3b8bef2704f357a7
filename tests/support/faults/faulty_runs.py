"""Runs of a tiny training in one workspace, made and verified by m5ws itself, with ranks that are forks.

A file outside of all snapshots names the planted fault, and exists only while the run is made. The training uses the
library `ruler`, a distribution of two versions in a folder outside the workspace.
"""

import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from m5ws import workspace
from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.attempts import leader, planning
from m5ws.errors import M5Error
from m5ws.records.determinism import environment
from m5ws.records.environment import Determinism
from m5ws.reproduce import reproduce, segments
from m5ws.reproduce.segments import JointResult
from m5ws.snapshot import snapshot
from tests.support.ranks.forks import ForkLauncher, ForkParents
from tests.support.workspace.checkouts import commit_all

STEPS, EVERY = 40, 8
SCRIPT = Path(__file__).parents[2] / "flows" / "scripts" / "planted_fault.py"
_ROOT = Path(__file__).parents[3]
_SETTINGS = f"""\
name = "faulty"

[run]
command = ["train.py"]
trainer = "torchrun"
checkpoint_every = {EVERY}
fingerprint_every = 1

[mlflow]
enabled = false
"""
_RULER = """\
def length(step):
    return {length} if step == {step} else 1.0
"""


class Runs:
    """A workspace, its store, and the processes of its ranks' launcher."""

    def __init__(self, folder: Path, parents: ForkParents, variables: Mapping[str, str]) -> None:
        self.root, self.site, self._told = folder / "w", Path(variables["SITE"]), Path(variables["PLANTED"])
        self.root.mkdir(parents=True)
        shutil.copy(SCRIPT, self.root / "train.py")
        (self.root / "m5ws.toml").write_text(_SETTINGS)
        (self.root / ".gitignore").write_text(".m5ws/\n")
        commit_all(self.root)
        self.here = workspace.find(self.root, variables)
        self.repo = self.here.repository(create=True)
        ports = self.here.ports(self.repo)
        self.ports = msgspec.structs.replace(ports, launcher=ForkLauncher(parents, variables))
        self._installed: dict[str, str] = {}
        self.restore()
        here = self.here
        given = (here.source(), here.datasets(), here.tokenizers(), here.observer(), here.index_path)
        self._snapshot = snapshot.take(here.root, here.settings, self.repo, *given, None).id

    def install(self, name: str, version: str, code: str) -> None:
        """Install a version of a distribution in place of any other version."""
        if version == "1.0" and self._installed.get(name) == version:
            return
        for old in self.site.glob(f"{name}*"):
            shutil.rmtree(old)
        (self.site / name).mkdir(parents=True)
        (self.site / name / "__init__.py").write_text(code)
        folder = self.site / f"{name}-{version}.dist-info"
        folder.mkdir()
        self._installed[name] = version
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def restore(self) -> None:
        """Install the versions that runs are trained with."""
        self.install("ruler", "1.0", _RULER.format(length=1.0, step=0))
        self.install("gauge", "1.0", "")

    def upgrade(self, step: int, length: float) -> None:
        """Install the version of `ruler` that returns another length at one step."""
        self.install("ruler", "2.0", _RULER.format(length=length, step=step))

    def train(self, *attempts: Mapping[str, Any], seed: int, nproc: int) -> str:
        """Make a run whose attempts have these faults and whose last attempt ends well; return its id."""
        spec = planning.spec(self.here.settings.run, planning.RunOptions(seed=seed, nproc=nproc))
        made = planning.new_run(self._snapshot, spec)
        for fault in attempts or ({},):
            with self._planted(fault):
                result = leader.execute(self.ports, self._plan(made))
        assert result.outcome == "finished", f"{result.reason}: {self._logs(made.id)}"
        return made.id

    def verify(self, run_id: str, parallel: int = 1) -> JointResult | M5Error:
        """Replay every segment, and return the joint verdict, or the error of a damaged run."""
        request = reproduce.ReplayRequest(original=run_id, env="warn")

        def one(segment: Any) -> Any:
            part = msgspec.structs.replace(request, segment=segment)
            plan = reproduce.plan(self.ports, part, self.here.home, self.here.root)
            return reproduce.execute(self.ports, part, plan, lambda _: None)

        try:
            wanted = segments.of_run(self.repo, run_id)
            verdicts = segments.replay(wanted, one, parallel, lambda _: None, threading.Event().set)
        except M5Error as error:
            return error
        return segments.join(run_id, verdicts, wanted)

    def _plan(self, made: Any) -> AttemptPlan:
        return planning.plan(self.repo, made, self.here.home, self.here.root, self.ports.environment)

    @contextmanager
    def _planted(self, fault: Mapping[str, Any]) -> Iterator[None]:
        if fault:
            self._told.write_text(json.dumps(fault))
        try:
            yield
        finally:
            self._told.unlink(missing_ok=True)

    def _logs(self, run_id: str) -> str:
        paths = sorted((self.here.home / "runs" / run_id).rglob("*.log"))
        return "\n".join(f"--- {log}\n{log.read_text(errors='replace')[-3000:]}" for log in paths)


def variables(folder: Path) -> dict[str, str]:
    """Return the variables of all processes: paths of the libraries and of the fault, deterministic settings."""
    site = folder / "site"
    site.mkdir(parents=True)
    paths = os.pathsep.join([str(_ROOT), str(site)])
    own = {"SITE": str(site), "PLANTED": str(folder / "planted.json"), "PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo"}
    return {**os.environ, **environment(Determinism()), **own}

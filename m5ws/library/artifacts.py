"""The files of a run as folders: MLflow's artifact repository for addresses `m5ws://` (tracking/mlflow/artifacts.py).

    checkpoints/NAME/   weights as safetensors
    outputs/NAME/       output files of a node
    snapshot/           files of the workspace

An export of a checkpoint is made when it is read. Links of the snapshot are left out.

Invariant: every byte is verified when it is read.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from m5ws.checkpoints.export import export
from m5ws.checkpoints.resolve import CheckpointRef
from m5ws.errors import NotFound
from m5ws.outputs import merging
from m5ws.records.tree import Entry
from m5ws.repository.files import trees
from m5ws.repository.references import checkpoints, outputs, runs, snapshots
from m5ws.repository.repository import Repository
from m5ws.workspace import export_tools

_CHECKPOINTS, _OUTPUTS, _SNAPSHOT = "checkpoints", "outputs", "snapshot"


def artifact_repository(artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None) -> Any:
    """Return MLflow's artifact repository of an address: an entry point, which MLflow loads in each process."""
    from m5ws.tracking.mlflow.artifacts import Artifacts

    return Artifacts(RunFiles, artifact_uri, tracking_uri, registry_uri)


class RunFiles:
    """The files of a run below a folder, which is empty for all."""

    def __init__(self, repo: Repository, run: str, folder: str = "") -> None:
        self._repo, self._run, self._folder = repo, runs.load(repo, run), folder

    def list(self, folder: str) -> list[tuple[str, int | None]]:
        """Return the names in a folder with the sizes of files in bytes, None for folders. Raises NotFound."""
        prefix = self._place(folder)
        prefix += "/" if prefix else ""
        names: dict[str, int | None] = {}
        for path, size in self._sizes(prefix).items():
            if path.startswith(prefix):
                name, is_folder, _ = path.removeprefix(prefix).partition("/")
                names[name] = None if is_folder else size
        return sorted(names.items())

    def write(self, path: str, target: Path) -> None:
        """Write a file to `target`. Raises NotFound, CorruptObject, MissingExtra."""
        kind, name, file = self._parts(self._place(path))
        if kind == _CHECKPOINTS:
            self._write_export(self._export(name), file, target)
            return
        entry = self._entries(kind, name).get(file)
        if entry is None:
            raise NotFound(f"run {self._run.id} has no file {path}")
        with open(target, "wb") as written:
            written.writelines(self._repo.objects.read(part) for part in entry.parts)

    def _place(self, path: str) -> str:
        return "/".join(filter(None, (self._folder, path.strip("/"))))

    @staticmethod
    def _parts(path: str) -> tuple[str, str, str]:
        """Return the kind of a path, the name of the checkpoint or of the outputs, and the path below."""
        kind, _, rest = path.partition("/")
        name, _, below = ("", "", rest) if kind == _SNAPSHOT else rest.partition("/")
        return kind, name, below

    def _sizes(self, prefix: str) -> Mapping[str, int | None]:
        """Return the paths that decide the names in a folder, with the sizes of files. A path of a folder ends in /."""
        kind, name, _ = self._parts(prefix)
        if not kind:
            return dict.fromkeys(f"{each}/" for each in (_CHECKPOINTS, _OUTPUTS, _SNAPSHOT))
        if kind == _CHECKPOINTS and name:
            return {f"{kind}/{name}/{file}": size or 0 for file, size in self._export(name).planned.files.items()}
        if kind == _SNAPSHOT or name:
            entries = self._entries(kind, name)
            return {"/".join(filter(None, (kind, name, path))): entry.size_bytes for path, entry in entries.items()}
        listed = checkpoints.valid if kind == _CHECKPOINTS else outputs.names
        return dict.fromkeys(f"{kind}/{each}/" for each in listed(self._repo, self._run.id))

    def _entries(self, kind: str, name: str) -> dict[str, Entry]:
        """Return the files of the snapshot or of output files by their paths."""
        if kind == _SNAPSHOT:
            digests = dict.fromkeys(snapshots.load(self._repo, self._run.snapshot).trees.values())
            loaded = [trees.load(self._repo.objects, digest).entries for digest in digests]
        elif kind == _OUTPUTS and outputs.is_name(name):
            loaded = [merging.load(self._repo, self._run.id, (name,)).entries]
        else:
            raise NotFound(f"run {self._run.id} has no folder {kind}/{name}")
        return {entry.name: entry for entries in loaded for entry in entries if entry.link is None}

    def _export(self, name: str) -> export.ExportPlan:
        if not checkpoints.is_name(name):
            raise NotFound(f"run {self._run.id} has no checkpoint {name}")
        digest = checkpoints.digest(self._repo, self._run.id, name)
        which = CheckpointRef(run=self._run.id, name=name, digest=digest)
        return export.plan(self._repo, which, "safetensors", "weights", export_tools())

    def _write_export(self, plan: export.ExportPlan, file: str, target: Path) -> None:
        """Write one file of an export."""
        if file not in plan.planned.files:
            raise NotFound(f"the export of checkpoint {plan.planned.name} has no file {file}")
        files = tuple(each for each in plan.files if each.name == file)
        small = {each: content for each, content in plan.small.items() if each == file}
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder, "export")
            export.apply(self._repo, msgspec.structs.replace(plan, files=files, small=small), made)
            os.replace(made / file, target)

"""Two runs with output files, each with its own time and place."""

import datetime as dt
import io
import re
from collections.abc import Collection
from pathlib import Path

import msgspec
import torch

from m5ws.records.base import Digest
from m5ws.records.checkpoint import Content
from m5ws.repository.files import trees
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.repository import Repository
from m5ws.reproduce.outputs import output_files
from m5ws.reproduce.outputs.output_files import OutputReport
from m5ws.reproduce.outputs.surroundings import Surroundings

Files = dict[str, bytes]


_NUMBERED = re.compile(r"(.*/version_)(\d+)/")


class Side(msgspec.Struct, frozen=True):
    """A run's time and place, and the one result of its training."""

    run: str
    host: str
    began_s: float
    loss: float = 0.25
    attempts: int = 1
    begins_anew: bool = False

    @property
    def place(self) -> Surroundings:
        ended_s = self.began_s + 200
        return Surroundings(
            run=self.run,
            hosts=(self.host,),
            began_s=self.began_s,
            ended_s=ended_s,
            attempts=self.attempts,
            begins_anew=self.begins_anew,
        )

    @property
    def work(self) -> str:
        return f"/home/ada/project/.m5ws/runs/{self.run}/0001/work"

    def moment(self, after_s: float = 7.5) -> dt.datetime:
        # Frameworks write local time, and runs may be in any zone.
        zone = dt.timezone(dt.timedelta(hours=-9))
        return dt.datetime.fromtimestamp(self.began_s + after_s, zone)


ONE = Side("a1b2c3d4e5f6", "node-1", dt.datetime(2026, 11, 24, 20, 44, 45, tzinfo=dt.UTC).timestamp())


OTHER = Side("0f1e2d3c4b5a", "gpu7.example.org", dt.datetime(2027, 1, 2, 8, 59, 58, tzinfo=dt.UTC).timestamp())


def saved(value: object) -> bytes:
    """Return a value as torch.save writes it."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def stored_content(repo: Repository, folder: Path, files: Files) -> Digest:
    """Store files through an empty or used folder; return the digest of their record."""
    sources = []
    for number, (name, data) in enumerate(files.items()):
        path = folder / f"{len(list(folder.iterdir()))}-{number}"
        path.write_bytes(data)
        sources.append(SourceFile(path=name.encode(), location=path))
    written = trees.write_tree(repo.objects, repo.locations, sources)
    return repo.objects.put_record(Content(format="files/1", world=1, tree=written.digest, packing=written.packing))


def compare(
    repo: Repository,
    folder: Path,
    sides: tuple[Side, Side],
    files: tuple[Files, Files],
    earlier: Collection[str] | None = None,
) -> OutputReport:
    """Compare the files of two runs.

    By default, a resumed run's files in numbered folders, but for the last number of each, are of earlier attempts.
    `earlier` names them otherwise.
    """
    contents = stored_content(repo, folder, files[0]), stored_content(repo, folder, files[1])
    places = []
    for side, content in zip(sides, contents, strict=True):
        numbered = {
            (match[1], int(match[2])) for match in map(_NUMBERED.search, output_files._entries(repo, content)) if match
        }
        last = {stem: max(number for other, number in numbered if other == stem) for stem, _ in numbered}
        left = {
            (name, entry.digest)
            for name, entry in output_files._entries(repo, content).items()
            if side.attempts > 1 and (match := _NUMBERED.search(name)) and int(match[2]) < last[match[1]]
        }
        if earlier is not None and side.attempts > 1:
            entries = output_files._entries(repo, content).items()
            left = {(name, entry.digest) for name, entry in entries if name in earlier}
        places.append(msgspec.structs.replace(side.place, earlier=frozenset(left)))
    return output_files.compare(repo, contents, (places[0], places[1]))

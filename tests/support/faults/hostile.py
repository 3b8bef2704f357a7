"""A workspace with a hostile store, and m5ws commands in a process with little memory.

Files that must not change are listed before and after: names, modes, sizes, times and inodes.
"""

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from m5ws.records import codec
from m5ws.records.base import Record, SealedRecord
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.records.environment import Observed
from m5ws.records.ledger import NODE, AttemptStarted, Batch, Event, NodeStarted
from m5ws.records.run import LaunchSpec, Run
from m5ws.records.snapshot import Annotation
from m5ws.records.store import Format
from m5ws.records.tree import Entry, Tree
from m5ws.repository.ledger.ledger import encode_events, start_of
from m5ws.repository.ledger.spool import chain
from m5ws.repository.references.checkpoints import name
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.records import planted

_SCRIPT = Path(__file__).parents[2] / "repository" / "scripts" / "commands.py"
_PATIENCE_S = 120
RUN = "a" * 12
BATCH = f"runs/{RUN}/ledger/0001/0/00000000"


class Answer(msgspec.Struct, frozen=True):
    """The exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error:")]


class Commands:
    """A process that runs m5ws commands. If it does not answer, it is killed and the test fails."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"MALLOC_ARENA_MAX": "1", "XDG_CACHE_HOME": "/nonexistent"},
        )

    def __call__(self, *arguments: str) -> Answer:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(arguments).encode() + b"\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], _PATIENCE_S)
        if not ready:
            self.close()
            raise AssertionError(f"m5ws {' '.join(arguments)} hangs")
        line = process.stdout.readline()
        assert line, f"m5ws {' '.join(arguments)} ended its process"
        return msgspec.json.decode(line, type=Answer)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class World:
    """A workspace with a hostile store, a victim's files, and `out`, the only folder for output."""

    def __init__(self, root: Path, commands: Commands) -> None:
        self.root = root
        self.victim = root / "victim"
        self.workspace = root / "workspace"
        self.out = root / "out"
        self.store_dir = self.workspace / ".m5ws" / "store"
        for folder in (self.victim / "folder", self.store_dir, self.out):
            folder.mkdir(parents=True)
        for canary in (self.victim / "canary", self.victim / "folder" / "old"):
            canary.write_text("mine")
            os.utime(canary, (1, 1))
        (self.workspace / "m5ws.toml").write_text("[mlflow]\nenabled = false\n")
        # Every non-empty file is a large file, with its parts in its tree entry.
        self.repo = Repository.create(LocalStore(self.store_dir), Format(small_bytes=1))
        self._commands = commands

    def m5ws(self, *arguments: str) -> Answer:
        """Run a command. Only `out` and the store may change, and there is at most one error."""
        before = self._listing()
        answer = self._commands("-C", str(self.workspace), *arguments)
        assert self._listing() == before, f"{arguments} changed files outside of `out`"
        assert "Traceback" not in answer.err and answer.status != 70, answer.err
        assert len(answer.errors) <= 1 and "MemoryError" not in answer.err, answer.err
        return answer

    def refused(self, *arguments: str, saying: str, status: int | None = None) -> None:
        """Run a command that must end with one clear error and a hint."""
        answer = self.m5ws(*arguments)
        assert answer.status in ((2, 3) if status is None else (status,)), (arguments, answer)
        assert len(answer.errors) == 1 and saying in answer.err, (arguments, answer)
        assert "hint:" in answer.err, answer.err

    def fine(self, *arguments: str) -> str:
        answer = self.m5ws(*arguments)
        assert answer.status == 0 and not answer.errors, (arguments, answer)
        return answer.out

    def damage(self) -> list[Any]:
        """Return the damage that fsck reports."""
        answer = self.m5ws("fsck", "--json")
        assert answer.status in (0, 1) and not answer.errors, answer
        return list(json.loads(answer.out)["damage"])

    def _listing(self) -> dict[str, tuple[int, ...]]:
        listing: dict[str, tuple[int, ...]] = {}
        for folder, folders, files in os.walk(self.root):
            if Path(folder) == self.root:
                folders.remove("out")
            if Path(folder) == self.workspace:
                folders.remove(".m5ws")
            for entry in (*folders, *files):
                path = os.path.join(folder, entry)
                stat = os.lstat(path)
                listing[path] = (stat.st_mode, stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_nlink)
        return listing

    # --- planted records

    def put(self, data: bytes) -> str:
        return self.repo.objects.put(data)

    def record(self, record: Record) -> str:
        return self.repo.objects.put_record(record)

    def place(self, key: str, data: bytes) -> Path:
        """Put bytes under a key, in place of any other bytes."""
        path = self.store_dir / key
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.chmod(0o644)
        path.write_bytes(data)
        return path

    def tree(self, *entries: Entry) -> str:
        return self.record(Tree(entries=entries))

    def file(self, path: bytes, data: bytes = b"hostile") -> Entry:
        """Return an entry with true fields."""
        return planted.file(self.repo.objects, path, data)

    def link(self, path: bytes, target: bytes) -> Entry:
        digest = self.repo.objects.digest(target)
        return Entry(path=path, mode="link", size_bytes=len(target), digest=digest, link=target)

    def snapshot(self, code: str, config: str | None = None) -> str:
        """Publish a snapshot of these trees without checks, as a hostile author would."""
        digest = self.record(planted.snapshot(code, config=config or self.tree()))
        return self.publish(digest)

    def publish(self, snapshot: str) -> str:
        key = f"snapshots/{snapshot}/00000000001000-00000000"
        self.place(key, codec.encode(Annotation(key=key, created_s=1.0)))
        return snapshot

    def run(self, pinned: str, run: str = RUN, lies: Mapping[str, object] = MappingProxyType({})) -> str:
        """Publish a run that is right except for the fields `lies`."""
        record = plain(Run(id=run, snapshot=pinned, spec=LaunchSpec(command=("x",))))
        self.place(f"runs/{run}/run", codec.sealed(packed(record | dict(lies))))
        return run

    def sound(self) -> str:
        """Publish a sound snapshot, a run of it and a checkpoint of files; return the snapshot."""
        snapshot = self.snapshot(self.tree(self.file(b"x", b"print(1)")))
        self.run(snapshot)
        node = NodeStarted(node=0, host="h", observed=self.record(Observed()))
        self.batch(AttemptStarted(attempt=1, host="h"), node)
        content = self.record(Content(format="files/1", world=1, tree=self.tree(self.file(b"out", b"1"))))
        checkpoint = self.record(Checkpoint(run=RUN, snapshot=snapshot, attempt=1, step=1, content=content))
        self.place(f"runs/{RUN}/checkpoints/{name(1, 1)}", f"{checkpoint}\n".encode())
        return snapshot

    def batch(self, *events: Event, lies: Mapping[str, object] = MappingProxyType({})) -> None:
        """Publish the first batch of the node's own events, right except for the fields `lies`."""
        batch = first_batch({NODE: [codec.encode(event) for event in events]})
        self.place(BATCH, packed(plain(batch) | dict(lies)))


def first_batch(events: Mapping[str, Sequence[bytes]]) -> Batch:
    """Return the first batch of the attempt, with events by origin."""
    previous, stored = start_of(RUN, 1, 0), encode_events(events)
    head = chain(previous, bytes(stored))
    return Batch(run=RUN, attempt=1, node=0, seq=0, previous=previous, head=head, events=stored)


def plain(record: Record) -> dict[str, Any]:
    """Return a record as plain data, for hostile edits."""
    data = codec.encode(record)
    return dict(msgspec.msgpack.decode(data[:-32] if isinstance(record, SealedRecord) else data))


def packed(value: object) -> bytes:
    return msgspec.msgpack.encode(value)

"""What `operations`, `repository` and `training` ask of the outside.

Each port is the contract its conformance suite in tests/contract checks; an adapter adds nothing to it.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec

from m5ws.commits import CommitFacts, CommitsBetween
from m5ws.comparisons import Elements, JointVerdict, Verdict
from m5ws.launches import LaunchRequest
from m5ws.recipes import Recipe
from m5ws.records import Declared, Observed, Origin

Buffer = bytes | bytearray | memoryview


class ObjectStat(msgspec.Struct, frozen=True, kw_only=True):
    """One stored object: its key, its size and when it was published (seconds since the epoch)."""

    key: str
    size_bytes: int
    modified_s: float


class VouchedStat(ObjectStat, frozen=True, kw_only=True):
    """One stored object, and the checksum (`CRC64NVME`, `SHA256` …) by which its server vouches for all its bytes."""

    checksum: str | None = None


FORMAT = "format"
"""The key that is there exactly where there is a store."""


class ObjectStore(Protocol):
    """Bytes under keys, written once.

    Keys are relative, `/`-separated, of ASCII letters, digits, `.`, `_`, `-`. There is no overwrite:
    `create` is the only way in and the only concurrency primitive (docs/format.md).
    """

    @property
    def url(self) -> str:
        """Where this store is, in the form `open_store` takes it."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes [start, start+length) of an object; fewer when it is shorter. Raises NotFound."""

    def create(self, key: str, data: Buffer) -> None:
        """Publish an object, durable and whole, or not at all. Raises ObjectExists if the key is taken."""

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        """Yield every published object whose key starts with `prefix`, in key order."""

    def names(self, prefix: str) -> tuple[str, ...]:
        """Return the distinct next path components after `prefix`, which ends in `/`, sorted: no walk."""

    def delete(self, key: str) -> None:
        """Remove an object; an absent one is no error. Only `gc` calls it."""

    def stat(self, key: str) -> ObjectStat | None:
        """Return what is known of an object without reading it, or None if it is absent."""


@runtime_checkable
class Homed(Protocol):
    """A store that is in a region, on a server that others run (S3): what is asked before it is made or joined."""

    def home(self) -> str | None:
        """Return the region of a store that is to be made. Raises M5Error if it is not the one configured."""

    def visit(self, home_region: str | None) -> str:
        """Return what a person should know who works from here, or "". Raises M5Error if it is not there at all."""

    def region(self) -> str | None:
        """Return the region that the server is in, as it says; None if it says none. Raises M5Error."""

    def recall(self, region: str | None) -> None:
        """Take the `region` of an earlier time for what the server says, which then need not be asked."""

    def probe(self) -> None:
        """Try that `create` lets one writer win. Raises M5Error if it does not, or if this user may not write."""


@runtime_checkable
class Vouching(Protocol):
    """A store on a server that checked what arrived, and keeps a checksum of it by which it watches over it (S3).

    Its word is no proof: docs/threat-model.md says what it is good for.
    """

    def vouched(self, prefix: str) -> Iterator[VouchedStat]:
        """Yield what `list` does, with what the server vouches by for a whole object; None where it does not."""

    def sha256(self, key: str) -> str | None:
        """Return the SHA-256, in hex, that the server keeps of a whole object, or None. Raises NotFound."""


@runtime_checkable
class OnDisk(Protocol):
    """What a store can do besides, whose objects may lie in files of this machine: a directory, a cache."""

    def descriptor(self, key: str) -> int | None:
        """Return an open descriptor of a file that holds an object, for reading; the caller closes it.

        None if there is no such file here. The bytes are as unverified as those of `get`.
        """


@runtime_checkable
class Flowing(Protocol):
    """What a store can do besides, whose objects come from far away: hand one on as it arrives, never held whole."""

    def flow(self, key: str, sink: Callable[[Buffer], object]) -> None:
        """Call `sink` with the bytes of an object, in order, each once; they are as unverified as those of `get`.

        Raises NotFound, and what `sink` raises.
        """


@runtime_checkable
class Near(Protocol):
    """What a store can do besides, that keeps copies of objects on this machine's disk: a cache."""

    @property
    def copies(self) -> tuple[Path, int]:
        """The directory of the copies, and how many bytes they may have together."""

    @property
    def capacity_bytes(self) -> int:
        """How much it keeps for certain before it drops what was used least lately."""

    def fresh(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """As `get`, from the store itself, whatever the copy is: it is dropped. Raises NotFound."""

    def held(self, key: str) -> int | None:
        """Return the size of an object's copy, which counts as used now, or None if there is none."""


class SourceFile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file of the author's to be captured: `path` inside the tree, `location` on this machine (`os.fsdecode`d).

    `found` is what `lstat` said of it, where that was asked already.
    """

    path: bytes
    location: Path | str
    found: os.stat_result | None = None


class SourceState(msgspec.Struct, frozen=True, kw_only=True):
    """What source control says of a working tree: paths relative to the root that was asked about, sorted.

    `files` are tracked and untracked-not-ignored files that are in the working tree, submodules and nested
    repositories included; `changed` is what of it, or missing from it, differs from `commit`, which is None on an
    unborn branch and without a repository. `remote` and `author` hold no credentials. `stats` is what `lstat` said
    meanwhile of files that did not differ, by path: so asking takes no time of its own. Where not `glanceable`, there
    are files whose changes a glance does not show.
    """

    commit: str | None
    branch: str | None
    remote: str | None
    author: str | None
    files: tuple[bytes, ...]
    changed: tuple[bytes, ...] = ()
    notes: tuple[str, ...] = ()
    stats: Mapping[bytes, os.stat_result] = {}
    glanceable: bool = False

    def says(self, other: "SourceState") -> bool:
        """Return whether both say the same of the tree; stamps of files are not part of it."""
        return msgspec.structs.replace(self, stats={}) == msgspec.structs.replace(other, stats={})


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """What a working tree was at one moment, without naming its files: two that are equal are of the same tree.

    That holds for trees that were `glanceable`, between glances of which the first began more than two seconds after
    `indexed_ns`, when source control last wrote down what files are like.
    """

    said: tuple[bytes, ...]
    indexed_ns: int


class SourceControl(Protocol):
    """Reads a working tree; never writes to it."""

    def glance(self, root: Path) -> Callable[[], Glance | None]:
        """Begin to look at `root`, for a fraction of what `state` costs, and return at once what waits for the answer.

        That is None if it cannot be told so cheaply.
        """

    def state(self, root: Path) -> SourceState:
        """Return the state of the working tree at `root`, of files below `root` alone.

        Without a repository: every file. `.git` and `.m5ws` are never in it.
        """


class TrackedDataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset that another tool pins.

    `path` is inside the workspace, `pin` the file that names it, `hash` the tool's own name for the content;
    `executable` is the mode its pin records, which is the only one that counts.
    """

    path: bytes
    pin: bytes
    kind: Literal["dvc"]
    hash: str
    size_bytes: int | None = None
    executable: bool = False
    legacy: bool = False


class CommitHistory(Protocol):
    """History of the commits around a workspace. What is missing is in the answer, and no error."""

    def facts(self, commit: str) -> CommitFacts: ...

    def between(self, old: str, new: str) -> CommitsBetween: ...


class DatasetSource(Protocol):
    """Datasets that another tool tracks (DVC)."""

    def find(self, root: Path, files: Sequence[bytes]) -> tuple[TrackedDataset, ...]:
        """Return every dataset whose pin is among `files`, by reading pins only; sorted by path."""

    def select(self, root: Path, dataset: TrackedDataset, files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
        """Return those of `files`, found where the dataset belongs, that its tool does not ignore."""

    def verify(self, dataset: TrackedDataset, files: Sequence[SourceFile]) -> None:
        """Check every byte of `files` against the pin. Raises M5Error that says what to do about a difference."""

    def fetch(self, root: Path, dataset: TrackedDataset, target: Path) -> tuple[SourceFile, ...]:
        """Write the dataset's files below `target`, from cache or remote, each checked.

        Raises NotFound for bytes that neither has, CorruptObject for wrong ones, MissingExtra.
        """


class TokenizerProbe(Protocol):
    """Asks a tokenizer for token ids."""

    def version(self) -> str | None:
        """Return the library that would answer, with its version; None if there is none. Imports nothing heavy."""

    def ids(self, tokenizer_json: bytes, text: str) -> tuple[int, ...]:
        """Return the token ids of `text`. Raises M5Error for a file that the library cannot read."""


class Observer(Protocol):
    """Looks at this machine as the training processes will see it."""

    def observe(self, environment: Mapping[str, str]) -> Observed:
        """Return the observed environment, with `environment` set; in a process of its own."""

    def declare(self, root: Path, lock_files: Sequence[str], image: str | None) -> Declared:
        """Return the declared environment of the workspace at `root`."""

    def origins(self, image: str | None) -> dict[str, Origin]:
        """Return where each installed distribution came from that no index gave, but for m5ws; fast.

        Nothing inside a container of `image`, which pins what is installed in it.
        """


class Process(Protocol):
    """A launched attempt."""

    @property
    def pid(self) -> int:
        """The process that stands for the whole attempt."""

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""

    def stop(self, grace_s: float) -> int:
        """Ask it to end, force it after `grace_s` seconds, and return the exit status."""


class Launcher(Protocol):
    """Starts an attempt from a rendered request."""

    def launch(self, request: LaunchRequest) -> Process:
        """Start the processes and return at once."""

    def can_mount(self, folder: str, path: str) -> bool:
        """Return True if `LaunchRequest.mount` may name this folder and path."""


class Elsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """An environment that was made again: its interpreter, what processes in it inherit, and who looks and starts."""

    python: str
    environment: Mapping[str, str]
    launcher: Launcher
    observer: Observer


class Environments(Protocol):
    """Makes environments again."""

    def build(
        self,
        recipe: Recipe,
        write_code: Callable[[Path], None],
        progress: "Progress | None" = None,
        *,
        same_patch: bool = True,
    ) -> Elsewhere:
        """Return the environment of a recipe, which is built if it was not before; `write_code` fills a new folder.

        With `same_patch`, the interpreter is of the very version. Raises M5Error for what is missing, or cannot be
        installed.
        """


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


class Signed(msgspec.Struct, frozen=True, kw_only=True):
    """What a signature is worth: whether it is `good`, whose key made it, and who that is, if somebody said so.

    `keyid` is the fingerprint of the key inside the signature, "" if there is none to be found.
    """

    good: bool
    keyid: str = ""
    signer: str | None = None


class Signatures(Protocol):
    """Signs bytes for one purpose, and says what a signature is worth (SSH keys)."""

    def sign(self, key: Path, data: bytes) -> bytes:
        """Return an armoured signature by the private key in a file. Raises M5Error."""

    def keyid(self, signature: bytes) -> str:
        """Return the fingerprint of the key that a signature says it was made with, or ""."""

    def check(self, signature: bytes, data: bytes, allowed: Path | None) -> Signed:
        """Check a signature: by any key, or, if `allowed` says who signs with which keys, by one of these.

        Raises M5Error where it could not be checked.
        """


class CompareBits(Protocol):
    """Compares elements by their bits (training/elements.py)."""

    def __call__(self, a: bytearray, b: bytearray, dtype: str, first: int) -> Elements:
        """Compare two buffers of equal length; `dtype` is torch's name, `first` the index of their first element."""


Progress = Callable[[str, int, int], None]
"""Called with (what, done, total) during long work; total 0 means unknown."""

"""Everything m5ws persists, as frozen records. No I/O here.

A record's identity is the digest of the bytes it was stored as, never of a re-encoding. Fields that
carry evidence hold exact text (`float.hex()`, digests), so that equality of records is equality of bits.
Nothing reachable from a `Snapshot` holds a time, a host, a user or an absolute path.
"""

import os
from typing import Annotated, Literal, cast

import msgspec

OBJECT_BYTES = 5 * 2**30
"""More than any object holds: what S3 takes in one PUT."""

# What decoding checks, so that nothing else need doubt it. A record that was decoded can neither name a key outside its
# place, nor claim a size that no machine counts to.
Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
"""Lower-case hex of the store's hash over an object's exact bytes (BLAKE3-256 by default)."""

RunId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
CheckpointName = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{10}-[0-9]{4,}\Z")]
OutputsName = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{4,}-([0-9]{6,}|final)\Z")]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
ObjectBytes = Annotated[int, msgspec.Meta(ge=0, le=OBJECT_BYTES)]
_Cut = Annotated[int, msgspec.Meta(ge=1, le=OBJECT_BYTES)]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all persisted records."""


class Sealed(Record, frozen=True, kw_only=True):
    """Base of records that are stored under a name of their own: their bytes end in their own digest (codec.py)."""


class Placed(Sealed, frozen=True, kw_only=True):
    """Base of sealed records that no field of theirs ties to their key; None in those that earlier builds wrote."""

    key: str | None = None


# --- the store -------------------------------------------------------------------------------------


class Format(Sealed, tag="format/1", frozen=True, kw_only=True):
    """A store's `format` object: what must be known before anything else can be read.

    Tensors are cut into chunks of `chunk_bytes`, large files of `file_chunk_bytes`; where a store does not say that, as
    those that were made before it was, files are cut as tensors are.
    """

    hash: Literal["blake3", "sha256"] = "blake3"
    chunk_bytes: _Cut = 64 * 2**20
    file_chunk_bytes: _Cut | None = None
    pack_bytes: _Cut = 8 * 2**20
    small_bytes: _Cut = 1 * 2**20
    home_region: str | None = None


class Slice(Record, frozen=True, kw_only=True):
    """`size_bytes` bytes at `offset` of a stored object; `digest` is of these bytes alone."""

    object: Digest
    offset: ObjectBytes
    size_bytes: ObjectBytes
    digest: Digest


class Entry(Record, frozen=True, kw_only=True):
    """One file of a tree. A symbolic link holds its target in `link` and no parts.

    `path` is relative, `/`-separated, in the file system's own bytes. `parts` joined are the content; as it is stored,
    a file below `Format.small_bytes` has none: a `Packing` says where it lies (`trees.located`).
    """

    path: bytes
    mode: Literal["file", "exec", "link"]
    size_bytes: Count
    digest: Digest
    parts: tuple[Slice, ...] = ()
    link: bytes | None = None

    @property
    def name(self) -> str:
        """The path as text for people; undecodable bytes are escaped."""
        return self.path.decode("utf-8", "backslashreplace")


class Tree(Record, tag="tree/2", frozen=True, kw_only=True):
    """Files sorted by path. A pure function of paths, modes and contents: no history is in it."""

    entries: tuple[Entry, ...]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)


class Pack(Record, frozen=True, kw_only=True):
    """An object that is small files joined: their digests (32 bytes each) and sizes, in the order of their bytes."""

    object: Digest
    files: bytes
    sizes_bytes: tuple[ObjectBytes, ...]

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes_bytes)

    @property
    def names(self) -> list[bytes]:
        """The digests of its files."""
        return [self.files[start : start + 32] for start in range(0, len(self.files), 32)]


class Packing(Record, tag="packing/1", frozen=True, kw_only=True):
    """Where small files lie, sorted by pack. It names files by content alone, and depends on what the store had."""

    packs: tuple[Pack, ...]


# --- the environment -------------------------------------------------------------------------------


class Declared(Record, frozen=True, kw_only=True):
    """What the author asked for: lock files by digest, image by digest, wanted versions by name."""

    locks: dict[str, Digest] = {}
    image: str | None = None
    wanted: dict[str, str] = {}


class Origin(Record, frozen=True, kw_only=True):
    """Where an installed distribution came from that no index gave by its name (PEP 610).

    `url` has no credentials; of files inside the workspace (`inside`) it is their path there. `hash` is the SHA-256 of
    an archive, or of what was installed from a folder; `commit` what was checked out of source control (`vcs`).
    """

    kind: Literal["archive", "directory", "editable", "vcs", "conda"]
    url: str = ""
    inside: bool = False
    vcs: str = ""
    hash: str | None = None
    commit: str | None = None
    subdirectory: str | None = None

    @property
    def local(self) -> bool:
        """Whether it is installed from files outside the workspace, which no snapshot holds."""
        return self.url.startswith("file:") and not self.inside and self.kind != "conda"

    def __str__(self) -> str:
        if self.inside:
            return f"{f'files {self.hash[:12]} of ' if self.hash else ''}the workspace's {self.url}"
        exact = self.commit or self.hash
        return " ".join(filter(None, (self.kind, self.url, exact)))


class Observed(Record, tag="environment/1", frozen=True, kw_only=True):
    """What was there. `facts` maps a fact's name to its value; what is absent is None, not missing.

    Names: python, platform, kernel, glibc, cpu.model, cpu.flags, cpu.capability, cpu.portable, cpu.count, torch,
    torch.cuda, torch.git, cuda.driver, cudnn, nccl, nccl.installed, libfabric, aws-ofi-nccl, efa.driver, gpu.model,
    gpu.count, gpu.driver, container.image, aws.ami, aws.instance_type, threads, threads.interop, deterministic, mkl,
    onednn, deepspeed, deepspeed.cpu_adam (digest of the built op), m5ws.code, rebuilt, variable.NAME for each allowed
    environment variable. `distributions` maps each installed distribution to its version, `origins` those that no
    index gave to where they came from, `provides` those that list their files to the modules and folders that imports
    and the loader find there: `numpy`, `google/auth` in a shared folder, `/lib/libiomp5.so` beside the folders of
    modules. `origins` and `provides` are None where nobody looked.
    """

    facts: dict[str, str | None] = {}
    distributions: dict[str, str] = {}
    origins: dict[str, Origin] | None = None
    provides: dict[str, tuple[str, ...]] | None = None


class Determinism(Record, frozen=True, kw_only=True):
    """Settings that are applied in every rank before the script starts, and are part of the snapshot.

    `level`: "portable" is "strict", and pins what CPU libraries choose by the processor (`m5ws.determinism`).
    `fill_uninitialized` has torch fill what `torch.empty` returns, so that code which reads it gives equal bits; off,
    such code shows as a divergence. It costs memory bandwidth: DeepSpeed allocates gigabytes a step.
    """

    level: Literal["portable", "strict", "warn", "off"] = "strict"
    threads: int = 1
    python_hash_seed: int = 0
    tf32: bool = False
    fill_uninitialized: bool = False
    cublas_workspace: str = ":4096:8"
    nccl_algo: str | None = "Ring"


# --- the snapshot ----------------------------------------------------------------------------------


class Code(Record, frozen=True, kw_only=True):
    """The working tree as it was: the commit it stands on, whether it differs from it, and every file."""

    commit: str | None
    dirty: bool
    tree: Digest


class Tokenizer(Record, frozen=True, kw_only=True):
    """Tokenizer files, and the ids that they give for a probe text (None if no library could be asked)."""

    tree: Digest
    probe_text: str | None = None
    probe_ids: tuple[int, ...] | None = None


class Dataset(Record, frozen=True, kw_only=True):
    """One pinned dataset; `hash` is the other tool's name for it (DVC's md5), `tree` is ours."""

    name: str
    kind: Literal["files", "dvc"]
    tree: Digest
    size_bytes: Count
    hash: str | None = None


class Snapshot(Record, tag="snapshot/1", frozen=True, kw_only=True):
    """Everything a run is a function of. Its digest is its id.

    The trees of code, config, tokenizer and datasets are disjoint; materialised together they are the workspace.
    """

    code: Code
    config: Digest
    tokenizer: Tokenizer | None
    datasets: tuple[Dataset, ...]
    declared: Declared
    determinism: Determinism

    @property
    def trees(self) -> dict[str, Digest]:
        """Part name to tree digest."""
        parts = {"code": self.code.tree, "config": self.config}
        if self.tokenizer is not None:
            parts["tokenizer"] = self.tokenizer.tree
        return parts | {f"data:{dataset.name}": dataset.tree for dataset in self.datasets}


class Annotation(Placed, tag="annotation/1", frozen=True, kw_only=True):
    """What is said about a snapshot without being part of it; `packings` are those of its trees, by the tree."""

    created_s: float
    author: str | None = None
    message: str | None = None
    branch: str | None = None
    remote: str | None = None
    observed: Digest | None = None
    notes: tuple[str, ...] = ()
    derived_from: Digest | None = None
    overrides: tuple[str, ...] = ()
    packings: dict[Digest, Digest] = {}


# --- runs ------------------------------------------------------------------------------------------


Trainer = Literal["torchrun", "deepspeed", "python"]
"""What starts the script: torchrun, for FSDP, DDP and one process; the same with DeepSpeed's operators built first;
or Python alone, for a script that takes torchrun's variables for a sign of GPUs."""


class LaunchSpec(Record, frozen=True, kw_only=True):
    """How a run is started: what of it can change bits is compared by `diff` and `reproduce`."""

    command: tuple[str, ...]
    trainer: Trainer = "torchrun"
    nproc: int = 1
    seed: int | None = None
    environment: dict[str, str] = {}
    checkpoint_every: int | None = None
    checkpoint_minutes: float | None = None
    fingerprint_every: int | None = None
    outputs: tuple[str, ...] = ()


class Parent(Record, frozen=True, kw_only=True):
    """The checkpoint that a fork starts from: whose it is, its name and step, and the digest of its record.

    `settings` says whose the optimizer's and the schedule's settings are: the script's own, where it was changed
    since, or the checkpoint's. `restart` is what begins anew instead of going on from the checkpoint.
    """

    run: RunId
    checkpoint: CheckpointName
    step: Count
    digest: Digest
    settings: Literal["checkpoint", "script"] = "checkpoint"
    restart: tuple[Literal["data", "schedule", "generators"], ...] = ()

    @property
    def name(self) -> str:
        """The checkpoint as people write it."""
        return f"{self.run}@{self.checkpoint}"


class Segment(Record, frozen=True, kw_only=True):
    """Steps of a run, after `first` up to `last`, that a replay does alone.

    It starts from `checkpoint`, whose record is `digest`: the run's own after step `first`, or that of a replay of it
    which is looked into. Without one, from where the run itself began.
    """

    first: Count
    last: Count
    checkpoint: CheckpointName | None = None
    digest: Digest | None = None

    def __str__(self) -> str:
        return f"steps {self.first + 1}-{self.last}"


class Run(Sealed, tag="run/1", frozen=True, kw_only=True):
    """One intent to train. `reproduces` names the run that this one repeats, in whole or a `segment` of it.

    `parent` says where a fork starts.
    """

    id: RunId
    snapshot: Digest
    spec: LaunchSpec
    purpose: Literal["train", "reproduce"] = "train"
    reproduces: RunId | None = None
    segment: Segment | None = None
    parent: Parent | None = None
    name: str | None = None
    created_s: float = 0.0

    @property
    def begin(self) -> int:
        """The step that the run starts after: of a replayed segment its first, of a fork its parent's, else 0."""
        if self.segment is not None:
            return self.segment.first
        return self.parent.step if self.parent is not None else 0


# --- checkpoints -----------------------------------------------------------------------------------


class Shard(Record, frozen=True, kw_only=True):
    """A box of a tensor: `offsets` and `sizes` per dimension; `parts` joined are its row-major bytes."""

    offsets: tuple[Count, ...]
    sizes: tuple[Count, ...]
    parts: tuple[Slice, ...]


class Tensor(Record, frozen=True, kw_only=True):
    """A whole tensor, whatever the number of ranks: its shards are disjoint boxes that fill it."""

    name: str
    dtype: str
    shape: tuple[Count, ...]
    shards: tuple[Shard, ...]


class Content(Record, tag="content/1", frozen=True, kw_only=True):
    """What a checkpoint holds, without who made it when: equal states have equal content digests.

    `format` tells how to read it: dcp (tensors by name), deepspeed (tensors by file and path),
    files (only `tree`, and the `packing` of its small files). `ranks` holds each rank's non-tensor state
    (RNG, loader, scheduler …) as plain msgpack; `common` what is the same on all. `blobs` are opaque byte
    items by name.
    """

    format: Literal["dcp/1", "deepspeed/1", "files/1"]
    world: Count
    tensors: tuple[Tensor, ...] = ()
    blobs: dict[str, Slice] = {}
    common: Slice | None = None
    ranks: tuple[Slice, ...] = ()
    tree: Digest | None = None
    packing: Digest | None = None


class Checkpoint(Record, tag="checkpoint/1", frozen=True, kw_only=True):
    """A content, linked to what made it. `ledger` maps each rank to its chain's head at that step."""

    run: str
    snapshot: Digest
    attempt: Count
    step: Count
    content: Digest
    ledger: dict[str, Digest] = {}


class OutputFiles(Record, tag="outputs/1", frozen=True, kw_only=True):
    """Files that a script wrote, linked to what made them; they belong to no step.

    `moment` is the end of their name: `final`, as the attempt left them, or the number of a copy made while it ran.
    """

    run: RunId
    snapshot: Digest
    attempt: Count
    moment: Annotated[str, msgspec.Meta(pattern=r"\A([0-9]{6,}|final)\Z")]
    content: Digest


ANY_OUTPUTS: type[OutputFiles] = cast("type[OutputFiles]", OutputFiles | Checkpoint)
"""The kinds of records under the keys of output files: older builds made copies that are `Checkpoint` records."""


def path_text(path: bytes) -> str:
    """Return a tree path as the file system's own text (`os.fsdecode`), for use with `os` functions."""
    return os.fsdecode(path)

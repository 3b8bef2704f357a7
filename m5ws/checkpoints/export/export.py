"""A checkpoint as files that other tools read: planned first, then written whole or not at all.

    safetensors  checkpoint.safetensors, names as in `dcp`           weights, or all tensors
    hf           model.safetensors, the model's own names, with its configuration and tokenizer: weights
    dcp          what torch.distributed.checkpoint reads             all tensors, or weights
    deepspeed    the files that DeepSpeed itself writes              all that DeepSpeed would have written

Names are those of torch's `get_model_state_dict` and `get_optimizer_state_dict`, joined by dots: `model.NAME` for
parameters and buffers, `optimizer.state.NAME.KEY`. What a format does not hold is in the plan, and in the file
`m5ws-checkpoint.json` beside the rest, which also says where it all came from.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from m5ws import fresh_directory
from m5ws.checkpoints import plain_state
from m5ws.checkpoints.export import huggingface, safetensors_files
from m5ws.checkpoints.resolve import Named
from m5ws.errors import UsageError
from m5ws.progress import Progress
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.records.tree import Entry
from m5ws.repository.objects import Objects
from m5ws.repository.repository import Repository
from m5ws.repository.tensors import Layout, Parts, layout

Format = Literal["safetensors", "dcp", "deepspeed", "hf"]
What = Literal["weights", "all"]
FORMATS: tuple[Format, ...] = ("safetensors", "dcp", "deepspeed", "hf")
ORIGIN = "m5ws-checkpoint.json"
_STEMS = {"safetensors": "checkpoint", "hf": "model"}
_HELD_BYTES = 256 * 2**20

Rebuild = Callable[[Objects, Content], tuple[list[Layout], list[str]]]
"""Gives a DeepSpeed checkpoint's tensors by the model's names, and what it has no name for."""


class WriteTensors(Protocol):
    """Writes tensors into an empty directory (training/tools/export_dcp.py)."""

    def __call__(self, layouts: Sequence[Layout], parts: Parts, directory: Path, progress: Progress | None) -> None: ...


class WriteFiles(Protocol):
    """Writes a framework's own files below `directory` (training/tools/export_deepspeed.py)."""

    def __call__(
        self, objects: Objects, content: Content, directory: Path, tag: str, progress: Progress | None
    ) -> None: ...


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """What needs torch: each is fetched when it is asked for, and raises MissingExtra where torch is not installed."""

    rebuild: Callable[[], Rebuild]
    dcp: Callable[[], WriteTensors]
    deepspeed: Callable[[], WriteFiles]


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be written. `left_out` says what of the checkpoint is in no file; `files` are names, with bytes if
    they are known before they are written.
    """

    checkpoint: Digest
    run: str
    name: str
    step: int
    attempt: int
    snapshot: Digest
    format: Format
    what: What
    tensors: int
    size_bytes: int
    files: dict[str, int | None]
    left_out: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A planned export with all that is needed to write it."""

    planned: Planned
    content: Content
    layouts: tuple[Layout, ...]
    files: tuple[safetensors_files.File, ...]
    small: dict[str, bytes]
    companions: dict[str, Entry]

    @property
    def tag(self) -> str:
        """What DeepSpeed calls a checkpoint at this step."""
        return _tag(self.planned.step)


def plan(
    repo: Repository,
    which: Named,
    form: Format,
    what: What | None,
    tools: Tools,
    file_bytes: int = safetensors_files.FILE_BYTES,
) -> Plan:
    """Return what an export would write; reads records only.

    `what` is None for what fits the format. Raises NotFound, CorruptObject, UsageError, MissingExtra.
    """
    record = repo.objects.get_record(which.digest, Checkpoint)
    content = repo.objects.get_record(record.content, Content)
    what = what or ("weights" if form in _STEMS else "all")
    _check(content, form, what, which)
    layouts, left_out = _layouts(repo.objects, content, form, what, tools)
    companions: dict[str, Entry] = {}
    if form == "hf":
        beside, missing = huggingface.find(repo, record.snapshot)
        companions = {name: entry for name, entry in beside.items() if not name.startswith("model")}
        left_out += missing
    said = {"m5ws.run": record.run, "m5ws.step": str(record.step), "m5ws.snapshot": record.snapshot}
    said["m5ws.checkpoint"] = which.digest
    stem = _STEMS.get(form, "")
    files = safetensors_files.plan(layouts, stem, said, file_bytes) if stem else []
    small = safetensors_files.index(files, stem)
    planned = Planned(
        checkpoint=which.digest,
        run=record.run,
        name=which.name,
        step=record.step,
        attempt=record.attempt,
        snapshot=record.snapshot,
        format=form,
        what=what,
        tensors=len(layouts),
        size_bytes=sum(found.size_bytes for found in layouts),
        files=dict(_file_names(content, form, files, small, companions, record.step)),
        left_out=(*left_out, *_state_left_out(repo.objects, content, form)),
    )
    return Plan(
        planned=planned, content=content, layouts=tuple(layouts), files=tuple(files), small=small, companions=companions
    )


def apply(repo: Repository, plan: Plan, target: Path, tools: Tools, progress: Progress | None = None) -> None:
    """Write what is planned into `target`, which must be absent or empty; all of it or nothing.

    Raises UsageError, NotFound, CorruptObject, MissingExtra.
    """
    form = plan.planned.format
    with fresh_directory.filled(target) as folder:
        if form == "deepspeed":
            tools.deepspeed()(repo.objects, plan.content, folder, plan.tag, progress)
        elif form == "dcp":
            tools.dcp()(plan.layouts, _parts(repo, plan), folder, progress)
        else:
            safetensors_files.write(plan.files, _parts(repo, plan), folder, progress)
        for name, data in plan.small.items():
            (folder / name).write_bytes(data)
        for name, entry in plan.companions.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(huggingface.read(repo, entry))
        origin = msgspec.json.format(msgspec.json.encode(plan.planned), indent=2)
        (folder / ORIGIN).write_bytes(origin + b"\n")


def _tag(step: int) -> str:
    return f"global_step{step}"


def _parts(repo: Repository, plan: Plan) -> Parts:
    """Return what reads parts: a tensor that lies in pieces on many ranks needs all their chunks at hand."""
    widest = max((len(found.boxes) for found in plan.layouts), default=1)
    return Parts(repo.objects, max(_HELD_BYTES, 2 * widest * repo.objects.format.chunk_bytes))


def _check(content: Content, form: Format, what: What, which: Named) -> None:
    if content.format == "files/1":
        raise UsageError(
            f"checkpoint {which} holds files that the script wrote, and no tensors",
            hint=f"`m5ws checkpoint show {which}` lists them.",
        )
    if form == "deepspeed" and content.format != "deepspeed/1":
        raise UsageError(
            f"checkpoint {which} was not made by DeepSpeed, so there are no files of DeepSpeed's to write",
            hint="--format dcp holds all of it; --format hf and safetensors hold the weights for any engine.",
        )
    if form == "hf" and what == "all":
        raise UsageError("--format hf holds weights only", hint="--format safetensors --tensors all holds all tensors.")
    if form == "deepspeed" and what == "weights":
        raise UsageError(
            "DeepSpeed's files hold weights and optimizer together", hint="--format safetensors holds the weights."
        )


def _layouts(
    objects: Objects, content: Content, form: Format, what: What, tools: Tools
) -> tuple[list[Layout], list[str]]:
    """Return the tensors to be written, by the names they are to have, and what is left out of those there are."""
    if form == "deepspeed":
        kept = (tensor for tensor in content.tensors if not tensor.name.startswith("buffers-"))
        return [layout(tensor) for tensor in kept], ["buffers that DeepSpeed does not save, and those of other ranks"]
    if content.format == "deepspeed/1":
        found, left_out = tools.rebuild()(objects, content)
    else:
        found, left_out = _renamed(content)
    if what == "weights":
        found = [one for one in found if one.name.startswith("model.")]
        left_out = ["the optimizer's state", *left_out]
    if form == "hf":
        found = [msgspec.structs.replace(one, name=one.name.removeprefix("model.")) for one in found]
    return found, left_out


def _renamed(content: Content) -> tuple[list[Layout], list[str]]:
    """Return tensors by torch's names; of a replica that differs from rank to rank, rank 0's."""
    found, apart = [], 0
    for tensor in content.tensors:
        name, _, rank = tensor.name.partition("@")
        kind, _, rest = name.partition(".")
        if rank not in {"", "0"}:
            apart += 1
            continue
        own = {"optimizer": f"optimizer.state.{rest}", "master": name, "state": name}.get(kind, f"model.{rest}")
        found.append(layout(tensor, own))
    said = [f"{apart} tensors of other ranks that differ from rank 0's"] if apart else []
    return found, said


def _state_left_out(objects: Objects, content: Content, form: Format) -> Iterator[str]:
    """Yield what is no tensor, and so in no file."""
    found = plain_state.read(objects, content.common) if content.common is not None else {}
    ranks = plain_state.read(objects, content.ranks[0]) if content.ranks else {}
    of_all, of_rank = (one if isinstance(one := side.get("backend"), dict) else {} for side in (found, ranks))
    if of_all.get("groups"):
        yield "the optimizer's settings by parameter group (learning rates, betas)"
    if "scheduler" in found:
        yield "the scheduler"
    if "feed" in ranks:
        yield "the position in the data"
    if "generators" in ranks:
        yield f"the random number generators ({', '.join(sorted(ranks['generators']))})"
    yield from (f"{name.removeprefix('state.')}, the script's own" for name in ranks if name.startswith("state."))
    if form == "deepspeed" and of_rank.get("cpu_adam"):
        yield "CPUAdam's running products: DeepSpeed alone does not go on in the same bits"


def _file_names(
    content: Content,
    form: Format,
    files: Sequence[safetensors_files.File],
    small: dict[str, bytes],
    companions: dict[str, Entry],
    step: int,
) -> Iterator[tuple[str, int | None]]:
    if form == "dcp":
        yield from ((name, None) for name in ("__0_0.distcp", ".metadata"))
    elif form == "deepspeed":
        yield from ((f"{_tag(step)}/{name}", None) for name in content.blobs if name.endswith(".pt"))
        yield from ((name, None) for name in ("latest", "zero_to_fp32.py"))
    yield from ((file.name, file.size_bytes) for file in files)
    yield from ((name, len(data)) for name, data in small.items())
    yield from ((name, entry.size_bytes) for name, entry in companions.items())
    yield ORIGIN, None

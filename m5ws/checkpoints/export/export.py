"""Export of a checkpoint as files of other tools: planned first, then written whole or not at all.

    safetensors  checkpoint.safetensors, with the names of `dcp`: weights, or all tensors.
    hf           model.safetensors with the model's own names, its configuration and tokenizer: weights.
    dcp          the format of torch.distributed.checkpoint: all tensors, or weights.
    deepspeed    DeepSpeed's own files: all of DeepSpeed's state.

Names are those of torch's `get_model_state_dict` and `get_optimizer_state_dict`, joined by dots: `model.NAME` for
parameters and buffers, `optimizer.state.NAME.KEY`. The plan lists the state that a format leaves out, and so does the
file `m5ws-checkpoint.json` beside the export, which also has its origin.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from m5ws import fresh_directory
from m5ws.checkpoints import plain_state
from m5ws.checkpoints.export import huggingface, safetensors_files
from m5ws.checkpoints.resolve import CheckpointRef
from m5ws.errors import UsageError
from m5ws.progress import Progress
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.records.tree import Entry
from m5ws.repository.objects import Objects
from m5ws.repository.repository import Repository
from m5ws.repository.tensors import Layout, PartCache, layout

Format = Literal["safetensors", "dcp", "deepspeed", "hf"]
What = Literal["weights", "all"]
FORMATS: tuple[Format, ...] = ("safetensors", "dcp", "deepspeed", "hf")
ORIGIN = "m5ws-checkpoint.json"
_STEMS = {"safetensors": "checkpoint", "hf": "model"}
_HELD_BYTES = 256 * 2**20

Rebuild = Callable[[Objects, Content], tuple[list[Layout], list[str]]]
"""Returns a DeepSpeed checkpoint's tensors by the model's names, and a list of those without one."""


WriteTensors = Callable[[Sequence[Layout], PartCache, Path, Progress | None], None]
"""Writes tensors into an empty directory (training/tools/export_dcp.py)."""

LoadTensors = Callable[[Sequence[Layout], PartCache], dict[str, Any]]
"""Reads tensors into memory (training/tools/load_tensors.py)."""

WriteFiles = Callable[[Objects, Content, Path, str, Progress | None], None]
"""Writes a framework's own files, of a tag, below a directory (training/tools/export_deepspeed.py)."""


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that need torch. Each is imported on use, and raises MissingExtra if torch is not installed."""

    rebuild: Callable[[], Rebuild]
    dcp: Callable[[], WriteTensors]
    deepspeed: Callable[[], WriteFiles]
    load: Callable[[], LoadTensors]


class ExportRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of an export. `left_out` lists the state that no file contains.

    `files` maps names to sizes in bytes, None if unknown before the write.
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


class ExportPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A planned export, with all data needed to write it."""

    planned: ExportRecord
    content: Content
    layouts: tuple[Layout, ...]
    files: tuple[safetensors_files.PlannedFile, ...]
    small: dict[str, bytes]
    companions: dict[str, Entry]

    @property
    def tag(self) -> str:
        """DeepSpeed's name for a checkpoint at this step."""
        return _tag(self.planned.step)


def plan(
    repo: Repository,
    which: CheckpointRef,
    form: Format,
    what: What | None,
    tools: Tools,
    file_bytes: int = safetensors_files.FILE_BYTES,
) -> ExportPlan:
    """Return the plan of an export. Reads records only.

    `what` None means the default of the format. Raises NotFound, CorruptObject, UsageError, MissingExtra.
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
    metadata = {"m5ws.run": record.run, "m5ws.step": str(record.step), "m5ws.snapshot": record.snapshot}
    metadata["m5ws.checkpoint"] = which.digest
    stem = _STEMS.get(form, "")
    files = safetensors_files.plan(layouts, stem, metadata, file_bytes) if stem else []
    small = safetensors_files.index(files, stem)
    planned = ExportRecord(
        checkpoint=which.digest,
        run=record.run,
        name=which.name,
        step=record.step,
        attempt=record.attempt,
        snapshot=record.snapshot,
        format=form,
        what=what,
        tensors=len(layouts),
        size_bytes=sum(tensor.size_bytes for tensor in layouts),
        files=dict(_file_names(content, form, files, small, companions, record.step)),
        left_out=(*left_out, *_state_left_out(repo.objects, content, form)),
    )
    return ExportPlan(
        planned=planned, content=content, layouts=tuple(layouts), files=tuple(files), small=small, companions=companions
    )


def apply(repo: Repository, plan: ExportPlan, target: Path, tools: Tools, progress: Progress | None = None) -> None:
    """Write the planned files into `target`, which must be absent or empty; all of them or none.

    Raises UsageError, NotFound, CorruptObject, MissingExtra.
    """
    form = plan.planned.format
    with fresh_directory.create(target) as folder:
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


def load(repo: Repository, which: CheckpointRef, part: str, tools: Tools) -> dict[str, Any]:
    """Return the tensors of one part of a checkpoint, such as `model`, by their exported names without the part.

    Every byte is verified. Raises NotFound, CorruptObject, UsageError, MissingExtra.
    """
    whole = plan(repo, which, "dcp", None, tools)
    prefix = f"{part}."
    chosen = [tensor for tensor in whole.layouts if tensor.name.startswith(prefix)]
    if not chosen:
        parts = ", ".join(dict.fromkeys(tensor.name.partition(".")[0] for tensor in whole.layouts)) or "no tensors"
        raise UsageError(f"checkpoint {which} has no part {part!r}", hint=f"It has {parts}.")
    short = tuple(msgspec.structs.replace(tensor, name=tensor.name.removeprefix(prefix)) for tensor in chosen)
    return tools.load()(short, _parts(repo, msgspec.structs.replace(whole, layouts=short)))


def _tag(step: int) -> str:
    return f"global_step{step}"


def _parts(repo: Repository, plan: ExportPlan) -> PartCache:
    """Return a reader of parts. It holds all chunks of the tensor with the most pieces."""
    widest = max((len(tensor.boxes) for tensor in plan.layouts), default=1)
    return PartCache(repo.objects, max(_HELD_BYTES, 2 * widest * repo.objects.format.chunk_bytes))


def _check(content: Content, form: Format, what: What, which: CheckpointRef) -> None:
    if form == "deepspeed" and content.format != "deepspeed/1":
        raise UsageError(
            f"--format deepspeed needs a checkpoint made by DeepSpeed, and {which} is not",
            hint="Use --format dcp for all tensors, or --format hf or safetensors for the weights.",
        )
    if form == "hf" and what == "all":
        raise UsageError(
            "--format hf cannot be combined with --tensors all: it holds weights only",
            hint="Use --format safetensors --tensors all.",
        )
    if form == "deepspeed" and what == "weights":
        raise UsageError(
            "--format deepspeed cannot be combined with --tensors weights: its files hold weights and optimizer",
            hint="Use --format safetensors for the weights.",
        )


def _layouts(
    objects: Objects, content: Content, form: Format, what: What, tools: Tools
) -> tuple[list[Layout], list[str]]:
    """Return the tensors to write, by their exported names, and a list of the tensors left out."""
    if form == "deepspeed":
        kept = (tensor for tensor in content.tensors if not tensor.name.startswith("buffers-"))
        return [layout(tensor) for tensor in kept], ["buffers that DeepSpeed does not save, and those of other ranks"]
    if content.format == "deepspeed/1":
        tensors, left_out = tools.rebuild()(objects, content)
    else:
        tensors, left_out = _renamed(content)
    if what == "weights":
        tensors = [tensor for tensor in tensors if tensor.name.startswith("model.")]
        left_out = ["the optimizer's state", *left_out]
    if form == "hf":
        tensors = [msgspec.structs.replace(tensor, name=tensor.name.removeprefix("model.")) for tensor in tensors]
    return tensors, left_out


def _renamed(content: Content) -> tuple[list[Layout], list[str]]:
    """Return tensors by torch's names. Of replicas that differ between ranks, rank 0's is used."""
    layouts, apart = [], 0
    for tensor in content.tensors:
        name, _, rank = tensor.name.partition("@")
        kind, _, rest = name.partition(".")
        if rank not in {"", "0"}:
            apart += 1
            continue
        own = {"optimizer": f"optimizer.state.{rest}", "master": name, "state": name}.get(kind, f"model.{rest}")
        layouts.append(layout(tensor, own))
    left_out = [f"{apart} tensors of other ranks that differ from rank 0's"] if apart else []
    return layouts, left_out


def _state_left_out(objects: Objects, content: Content, form: Format) -> Iterator[str]:
    """Yield the state other than tensors, which no file contains."""
    common = plain_state.read(objects, content.common) if content.common is not None else {}
    ranks = plain_state.read(objects, content.ranks[0]) if content.ranks else {}
    of_all, of_rank = (own if isinstance(own := side.get("backend"), dict) else {} for side in (common, ranks))
    if of_all.get("groups"):
        yield "the optimizer's settings by parameter group (learning rates, betas)"
    if "scheduler" in common:
        yield "the scheduler"
    if "feed" in ranks:
        yield "the position in the data"
    if "generators" in ranks:
        yield f"the random number generators ({', '.join(sorted(ranks['generators']))})"
    yield from (f"{name.removeprefix('state.')}, the script's own" for name in ranks if name.startswith("state."))
    if form == "deepspeed" and of_rank.get("cpu_adam"):
        yield "CPUAdam's running products: DeepSpeed alone does not continue with the same bits"


def _file_names(
    content: Content,
    form: Format,
    files: Sequence[safetensors_files.PlannedFile],
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

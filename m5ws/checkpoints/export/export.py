"""Export of a checkpoint as safetensors files: planned first, then written whole or not at all.

    safetensors  checkpoint.safetensors: weights, or all tensors.
    hf           model.safetensors with the model's own names, its configuration and tokenizer: weights.

Names are as in torch's `get_model_state_dict` and `get_optimizer_state_dict`, joined by dots: `model.NAME` for
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
from m5ws.repository import contents
from m5ws.repository.files import trees
from m5ws.repository.objects import Objects
from m5ws.repository.repository import Repository
from m5ws.repository.tensors import Layout, PartCache, layout

Format = Literal["safetensors", "hf"]
What = Literal["weights", "all"]
ORIGIN = "m5ws-checkpoint.json"
_STEMS: dict[Format, str] = {"safetensors": "checkpoint", "hf": "model"}
_HELD_BYTES = 256 * 2**20

NamedTensors = tuple[list[Layout], list[str], dict[str, str]]
"""Tensors by their exported names, a list of tensors without one, and ties: further names in the model, each with the
name of the tensor."""

Rebuild = Callable[[Objects, Content], NamedTensors]
"""Returns the tensors of a DeepSpeed checkpoint."""

LoadTensors = Callable[[Sequence[Layout], PartCache], dict[str, Any]]
"""Reads tensors into memory (training/tools/load_tensors.py)."""


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that need torch. Each is imported on use, and raises MissingExtra if torch is not installed."""

    rebuild: Callable[[], Rebuild]
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
    layouts: tuple[Layout, ...]
    files: tuple[safetensors_files.PlannedFile, ...]
    small: dict[str, bytes]
    companions: dict[str, Entry]


def plan(
    repo: Repository,
    which: CheckpointRef,
    form: Format,
    what: What,
    tools: Tools,
    file_bytes: int = safetensors_files.FILE_BYTES,
) -> ExportPlan:
    """Return the plan of an export. Reads records only. Raises NotFound, CorruptObject, UsageError, MissingExtra."""
    if form == "hf" and what == "all":
        raise UsageError(
            "--format hf cannot be combined with --tensors all: hf holds weights only",
            hint="Use --format safetensors --tensors all.",
        )
    record = repo.objects.get_record(which.digest, Checkpoint)
    content = repo.objects.get_record(record.content, Content)
    layouts, left_out, tied = _layouts(repo.objects, content, tools)
    left_out += [f"{name} is tied to {written}, which is written" for name, written in tied.items()]
    if what == "weights":
        layouts = _of_part(layouts, "model", "" if form == "hf" else "model.")
        left_out = ["the optimizer's state", *left_out]
    companions: dict[str, Entry] = {}
    if form == "hf":
        beside, missing = huggingface.find(repo, record.snapshot)
        companions = {name: entry for name, entry in beside.items() if not name.startswith("model")}
        left_out += missing
    metadata = {"m5ws.run": record.run, "m5ws.step": str(record.step), "m5ws.snapshot": record.snapshot}
    metadata["m5ws.checkpoint"] = which.digest
    # By the convention of `safetensors.torch.save_model`, whose `load_model` reads further names of tied tensors.
    prefix = "" if form == "hf" else "model."
    metadata |= {f"{prefix}{name}": f"{prefix}{written}" for name, written in tied.items()}
    files = safetensors_files.plan(layouts, _STEMS[form], metadata, file_bytes)
    small = safetensors_files.index(files, _STEMS[form])
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
        files={
            **{file.name: file.size_bytes for file in files},
            **{name: len(data) for name, data in small.items()},
            **{name: entry.size_bytes for name, entry in companions.items()},
            ORIGIN: None,
        },
        left_out=(*left_out, *_state_left_out(repo.objects, content)),
    )
    return ExportPlan(planned=planned, layouts=tuple(layouts), files=tuple(files), small=small, companions=companions)


def apply(repo: Repository, plan: ExportPlan, target: Path, progress: Progress | None = None) -> None:
    """Write the planned files into `target`, which must be absent or empty; all of them or none.

    Raises UsageError, NotFound, CorruptObject.
    """
    with fresh_directory.create(target) as folder:
        safetensors_files.write(plan.files, _parts(repo, plan.layouts), folder, progress)
        for name, data in plan.small.items():
            (folder / name).write_bytes(data)
        for name, entry in plan.companions.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(trees.read_file(repo.objects, entry))
        origin = msgspec.json.format(msgspec.json.encode(plan.planned), indent=2)
        (folder / ORIGIN).write_bytes(origin + b"\n")


def load(repo: Repository, which: CheckpointRef, part: str, tools: Tools) -> dict[str, Any]:
    """Return the tensors of one part of a checkpoint, such as `model`, by their exported names without the part.

    Every byte is verified. Raises NotFound, CorruptObject, UsageError, MissingExtra.
    """
    record = repo.objects.get_record(which.digest, Checkpoint)
    content = repo.objects.get_record(record.content, Content)
    layouts, _, tied = _layouts(repo.objects, content, tools)
    chosen = _of_part(layouts, part, "")
    if not chosen:
        parts = ", ".join(dict.fromkeys(tensor.name.partition(".")[0] for tensor in layouts)) or "no tensors"
        raise UsageError(f"checkpoint {which} has no part {part!r}", hint=f"It has {parts}.")
    state = tools.load()(chosen, _parts(repo, chosen))
    return state | ({name: state[written] for name, written in tied.items()} if part == "model" else {})


def _parts(repo: Repository, layouts: Sequence[Layout]) -> PartCache:
    """Return a reader of parts. It holds all chunks of the tensor with the most pieces."""
    widest = max((len(tensor.boxes) for tensor in layouts), default=1)
    return PartCache(repo.objects, max(_HELD_BYTES, 2 * widest * repo.objects.format.chunk_bytes))


def _layouts(objects: Objects, content: Content, tools: Tools) -> NamedTensors:
    return tools.rebuild()(objects, content) if content.format == "deepspeed/1" else _renamed(objects, content)


def _of_part(layouts: Sequence[Layout], part: str, prefix: str) -> list[Layout]:
    """Return the tensors of a part, with `prefix` in the place of the part's name."""
    return [
        msgspec.structs.replace(tensor, name=prefix + tensor.name.removeprefix(f"{part}."))
        for tensor in layouts
        if tensor.name.startswith(f"{part}.")
    ]


def _of_backend(objects: Objects, content: Content, name: str) -> dict[str, Any]:
    """Return a mapping in the backend's plain state of all ranks; empty without it."""
    backend = plain_state.read(objects, content.common).get("backend") if content.common is not None else None
    return dict(backend.get(name) or {}) if isinstance(backend, dict) else {}


def _renamed(objects: Objects, content: Content) -> NamedTensors:
    """Return tensors by torch's names, without buffers that the model's state dict leaves out.

    Of replicas that differ between ranks, rank 0's is used.
    """
    transient = _of_backend(objects, content, "transient")
    layouts, apart = [], 0
    for tensor in contents.tensors(objects, content):
        name, _, rank = tensor.name.partition("@")
        kind, _, rest = name.partition(".")
        if kind == "buffer" and rest in transient:
            continue
        if rank not in {"", "0"}:
            apart += 1
            continue
        own = {"optimizer": f"optimizer.state.{rest}", "master": name, "state": name}.get(kind, f"model.{rest}")
        layouts.append(layout(tensor, own))
    left_out = [f"{apart} tensors of other ranks that differ from rank 0's"] if apart else []
    unsaved = ["buffers that the model's state_dict leaves out"] if transient else []
    return layouts, [*left_out, *unsaved], _of_backend(objects, content, "tied")


def _state_left_out(objects: Objects, content: Content) -> Iterator[str]:
    """Yield the state other than tensors, which no file contains."""
    common = plain_state.read(objects, content.common) if content.common is not None else {}
    first = contents.Parts(objects, content).share(0).state if content.parts else None
    ranks = plain_state.read(objects, first) if first is not None else {}
    backend = common.get("backend")
    if isinstance(backend, dict) and backend.get("groups"):
        yield "the optimizer's settings by parameter group (learning rates, betas)"
    if schedulers := sum(name.partition(".")[0] == "scheduler" for name in common):
        yield "the scheduler" if schedulers == 1 else "the schedulers"
    if "feed" in ranks:
        yield "the position in the data"
    if "generators" in ranks:
        yield f"the random number generators ({', '.join(sorted(ranks['generators']))})"
    yield from (f"{name.removeprefix('state.')}, the script's own" for name in ranks if name.startswith("state."))

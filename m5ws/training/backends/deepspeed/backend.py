"""A DeepSpeed engine: ZeRO stages 1 to 3, with or without optimizer offload, and plain data parallelism in fp32.

`engine.save_checkpoint` saves the state and `engine.load_checkpoint` loads it, through m5ws's checkpoint engine
(`checkpoint_engine`). State that DeepSpeed leaves out is stored beside it: buffers of every rank, the count of micro
steps and CPUAdam's beta powers (`cpu_adam_state`). On another number of ranks, `reshard` makes this rank's files.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam

from m5ws.errors import M5Error
from m5ws.records.checkpoint import Content
from m5ws.repository import contents
from m5ws.repository.contents import Parts
from m5ws.repository.objects import Objects
from m5ws.training.backends.base import Layout, Piece, Plain, Saved, Stager
from m5ws.training.backends.deepspeed import checkpoint_engine, cpu_adam_state, limits, reshard
from m5ws.training.backends.deepspeed import layout as deepspeed_layout
from m5ws.training.backends.deepspeed import state as deepspeed_state
from m5ws.training.backends.tensor_names import unwrapped
from m5ws.training.compat import cpu_adam, facts, modules, zero, zero_files
from m5ws.training.compat import engine as internals
from m5ws.training.runtime import collectives
from m5ws.training.runtime.collectives import Group
from m5ws.training.state.plain_state import RestoreError, StateError

_BUFFERS = "buffers"


class DeepSpeedBackend:
    """`base.Backend` of the engine that `deepspeed.initialize` returns. Raises StateError if it cannot be restored."""

    format: Literal["deepspeed/1"] = "deepspeed/1"

    def __init__(self, engine: Any) -> None:
        facts.require(internals.facts(engine))
        limits.refuse_unsupported(engine, _base(engine))
        facts.require(_facts(engine))
        self._engine = engine
        self._module: torch.nn.Module = engine.module
        self._names = deepspeed_layout.names(self._module)
        base = _base(engine)
        self._tracked = cpu_adam_state.track(base) if isinstance(base, DeepSpeedCPUAdam) else None

    # --- tensors

    def tensors(self) -> Iterator[Piece]:
        yield from deepspeed_layout.parameter_pieces(self._module)
        for path, buffer in self._module.named_buffers():
            yield Piece(f"buffer.{unwrapped(path)}", buffer.detach(), copy="replica")
        if self._engine.zero_optimization():
            yield from deepspeed_layout.zero_pieces(self._engine.optimizer, self._names)
        else:
            yield from self._plain_pieces()
        yield from self._counters()

    def _plain_pieces(self) -> Iterator[Piece]:
        for parameter, state in self._engine.optimizer.state.items():
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    yield Piece(f"optimizer.{self._names[id(parameter)]}.{key}", value.detach(), copy="replica")

    def _counters(self) -> Iterator[Piece]:
        """Yield the number of optimizer steps, and the inputs of CPUAdam's beta powers."""
        states = _base(self._engine).state.values()
        steps = sorted({int(state["step"]) for state in states if "step" in state})
        if steps:
            yield Piece("optimizer.step", torch.tensor(steps), copy="replica")
        if self._tracked is not None:
            powers = self._tracked.powers
            values = torch.tensor([powers.beta1, powers.beta2, powers.anchor, powers.step], dtype=torch.float64)
            yield Piece("optimizer.cpu_adam", values, copy="replica")

    # --- save

    def begin(self) -> Iterator[str]:
        yield from ()

    def takes(self, path: str, tensor: torch.Tensor) -> bool:
        return False

    def given(self, path: str) -> torch.Tensor:
        raise RestoreError(f"the checkpoint has the tensor {path}, unlike any checkpoint of DeepSpeed")

    def check(self) -> None:
        """Do nothing: an engine that cannot be restored is refused when it is registered."""

    def layout(self) -> Layout:
        groups = getattr(self._engine.optimizer, "param_groups", ())
        names = frozenset(name for name, _ in self._engine.module.named_parameters())
        return Layout(names, tuple(len(group["params"]) for group in groups))

    def rehearse(self, objects: Objects, group: Group, apart: Collection[str] = ()) -> None:
        if self._engine.micro_steps % self._engine.gradient_accumulation_steps():
            return  # Between two optimizer steps, where no checkpoint is made.
        files = self._taken(collectives.rank(group))
        if self._engine.zero_optimization():
            facts.require(zero_files.facts(files))
        names = {name for rank in collectives.gather(set(files), group) for name in rank}
        if missing := sorted(set(checkpoint_engine.required_files(self._engine)) - names):
            raise StateError(f"DeepSpeed does not save {', '.join(missing)}, which it needs to load")
        deepspeed_state.rehearse(files)

    def stage(self, copier: Stager) -> "_Staged":
        structures, tensors = deepspeed_state.parted(self._files(torch.distributed.get_rank()))
        copies = _Copies(copier)
        copied = {name: copies.copy(name, tensor) for name, tensor in tensors.items()}
        # DeepSpeed's files hold nearly all pieces; a rank that saves no parameters copies its replicas too.
        pieces = [
            Piece(piece.name, copies.within(f"piece/{piece.name}/{number}", piece.tensor), piece.place, piece.copy)
            for number, piece in enumerate(self.tensors())
        ]
        common: dict[str, Plain] = {"optimizer_kind": type(_base(self._engine)).__name__}
        return _Staged(structures, copied, pieces, common, self._hidden())

    def _files(self, rank: int) -> dict[str, Mapping[str, Any]]:
        """Return all state that this rank stores, by file name; collective. Raises StateError."""
        engine = self._engine
        if engine.micro_steps % engine.gradient_accumulation_steps():
            raise StateError(
                "the checkpoint falls between two optimizer steps of the DeepSpeed engine",
                hint="A step of a session must contain gradient_accumulation_steps forward and backward passes.",
            )
        if engine.zero_optimization() and zero.cuts_parameters(engine.optimizer):
            deepspeed_layout.clear_padding(engine.optimizer, self._module, self._names)
        return self._taken(rank)

    def _taken(self, rank: int) -> dict[str, Mapping[str, Any]]:
        return {**checkpoint_engine.capture_files(self._engine), _buffers_of(rank): dict(self._module.named_buffers())}

    def _hidden(self) -> dict[str, Plain]:
        powers = asdict(self._tracked.powers) if self._tracked is not None else None
        return {"micro_steps": self._engine.micro_steps, "cpu_adam": powers}

    # --- load

    def load(
        self,
        objects: Objects,
        content: Content,
        parts: Parts,
        common: Mapping[str, Plain],
        rank: Mapping[str, Plain] | None,
        group: Group,
    ) -> None:
        problem: Exception | None = None
        files: dict[str, dict[str, Any]] = {}
        own = checkpoint_engine.capture_files(self._engine) if rank is None else {}
        try:
            files, hidden = self._read(objects, content, parts, collectives.rank(group), rank, own)
        except (M5Error, OSError) as error:
            problem = error
        # No rank may enter DeepSpeed's collectives if another rank does not.
        collectives.raise_on_all(problem, "read its part of the checkpoint", group)
        buffers = files.pop(_BUFFERS)
        checkpoint_engine.supply_files(self._engine, files, reshard.on_all_ranks(files))
        for parameter in self._module.parameters():
            zero.drop_second_copy(parameter)
        self._restore_hidden(buffers, hidden)

    def _read(
        self,
        objects: Objects,
        content: Content,
        parts: Parts,
        number: int,
        rank: Mapping[str, Plain] | None,
        own: dict[str, dict[str, Any]],
    ) -> tuple[dict[str, dict[str, Any]], Mapping[str, Plain]]:
        """Return DeepSpeed's files for this rank, with its buffers, and the state that DeepSpeed hides."""
        names = [*checkpoint_engine.required_files(self._engine), _buffers_of(number)]
        if rank is None:
            names = reshard.required_files(self._engine, number, content)
        blobs, tensors = contents.find_blobs(parts, number, names)
        if missing := [name for name in names if name not in blobs]:
            raise RestoreError(
                f"the checkpoint has no {', '.join(missing)}",
                hint="The ZeRO stage or the data type has changed since the checkpoint was saved.",
            )
        *names, buffers = names
        read = {_BUFFERS: deepspeed_state.read(objects, blobs[buffers], tensors)}
        if rank is not None:
            return read | {name: deepspeed_state.read(objects, blobs[name], tensors) for name in names}, rank
        stored = reshard.Stored(objects, content, blobs, tensors)
        files = reshard.files(self._engine, stored, own)
        return read | files, {**reshard.hidden(objects, parts), "micro_steps": None}

    @torch.no_grad()
    def _restore_hidden(self, stored: Mapping[str, torch.Tensor], rank: Mapping[str, Plain]) -> None:
        buffers = dict(self._module.named_buffers())
        if differing := buffers.keys() ^ stored.keys():
            raise RestoreError(f"model and checkpoint have different buffers: {', '.join(sorted(differing))}")
        for path, buffer in buffers.items():
            buffer.copy_(stored[path])
        steps = self._engine.global_steps * self._engine.gradient_accumulation_steps()
        # On another number of ranks a step may have more, or fewer, passes.
        self._engine.micro_steps = steps if rank["micro_steps"] is None else rank["micro_steps"]
        if (self._tracked is None) != (rank["cpu_adam"] is None):
            raise RestoreError("the checkpoint was saved with another optimizer: one of the two is DeepSpeed's CPUAdam")
        if self._tracked is not None:
            cpu_adam_state.restore(_base(self._engine), cpu_adam_state.BetaPowers(**rank["cpu_adam"]))


class _Copies:
    """Live tensors and their copies, with the copies of tensors that share memory with a copied tensor."""

    def __init__(self, copier: Stager) -> None:
        self._copier = copier
        self._by_storage: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the stager's copy of a live tensor."""
        copy = self._copier.copy(name, tensor)
        self._by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append((tensor, copy))
        return copy

    def within(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a live tensor: a view into an earlier copy, if that contains its elements."""
        for live, copy in self._by_storage.get(tensor.untyped_storage().data_ptr(), ()):
            plain = live.is_contiguous() and tensor.is_contiguous() and live.dtype == tensor.dtype
            start = tensor.storage_offset() - live.storage_offset()
            if plain and start >= 0 and start + tensor.numel() <= live.numel():
                return copy.view(-1)[start : start + tensor.numel()].view(tensor.shape)
        return self.copy(name, tensor)


@dataclass(frozen=True)
class _Staged:
    """`base.Staged`: the content of DeepSpeed's files, by file and path, copied or live."""

    structures: Mapping[str, bytes]
    state: Mapping[str, torch.Tensor]
    pieces: list[Piece]
    common: dict[str, Plain]
    rank: dict[str, Plain]

    def tensors(self) -> Iterator[Piece]:
        return iter(self.pieces)

    def save(self, objects: Objects, group: Group, apart: Collection[str]) -> Saved:
        share = deepspeed_state.write(objects, self.structures, self.state)
        return Saved(share=share, common=self.common, rank=self.rank)


def _buffers_of(rank: int) -> str:
    return f"buffers-{rank}"


def _base(engine: Any) -> Any:
    """Return the optimizer that computes the updates, inside DeepSpeed's wrappers."""
    optimizer = engine.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def _facts(engine: Any) -> Iterator[facts.Fact]:
    """Yield the facts about the parts of a supported engine."""
    yield from modules.STATED
    yield from modules.NAMED
    if engine.zero_optimization():
        yield from zero.facts(engine.optimizer)
    if isinstance(base := _base(engine), DeepSpeedCPUAdam):
        yield from cpu_adam.facts(base)

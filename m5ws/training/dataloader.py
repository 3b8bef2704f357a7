"""The registered data loader: its batches are digested, its position is captured and restored.

Invariant: `state` and `restore` use the position after the last batch that was handed out, however far the loader has
read ahead.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import blake3
import numpy as np
import torch
from torch.utils.data import DataLoader

from m5ws.errors import M5Error
from m5ws.records import sample_ids
from m5ws.training.backends.base import Plain
from m5ws.training.state import plain_state, tensor_bytes

_HINT = "For a fork with another kind of loader: m5ws fork … --restart data."
_OF_ACCELERATE = (
    "`Accelerator(dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True))` "
    "makes a loader with a position, if torchdata is installed. If the loader shuffles, give it a generator of its own "
    "(`generator=torch.Generator().manual_seed(1)`)"
)


class EmptyLoader(M5Error):
    """The loader returned no batch in a whole epoch."""

    hint = "The data set is empty, or smaller than one batch and drop_last is set."


class BatchDigest:
    """A digest of the batches of one step, and the ids of the samples in them."""

    def __init__(self) -> None:
        self._hash: Any = None
        self._ids: list[Any] = []

    def add(self, batch: object) -> None:
        """Add a batch: types, shapes, element types and bytes of all values in it."""
        self._hash = self._hash or blake3.blake3()
        update(self._hash, batch)
        ids = batch.get("sample_ids") if isinstance(batch, Mapping) else None
        if ids is not None:
            self._ids += ids.tolist() if hasattr(ids, "tolist") else list(ids)

    def take_ids(self) -> dict[str, str]:
        """Return the ids under `sample_ids` of the batches since the last call, as `Step.samples`; {} without ids."""
        ids, self._ids = self._ids, []
        return {"batch": sample_ids.format_ids(ids)} if ids else {}

    def take(self) -> str | None:
        """Return the digest of all batches since the last call, or None if there were none."""
        if self._hash is None:
            return None
        digest, self._hash = self._hash.hexdigest(), None
        return str(digest)


class Feed:
    """Hands out batches of a loader without end, epoch after epoch. Each is added to `batches`, if given."""

    NAMES = ("loader", "sampler")
    """Names of the generators in a loader."""

    def __init__(self, loader: Any, batches: BatchDigest | None, restart: bool = False) -> None:
        # A framework's form of a loader of m5ws.data has no position of its own.
        self._loader = getattr(loader, "m5ws_loader", loader)
        self._batches = batches
        self._restart = restart
        self._iterator: Iterator[Any] | None = None
        self.epoch = 0
        self.refusal: str | None = None
        """The reason why a loader with a `state_dict` is not restorable."""
        self.undrawn: str | None = None
        """Name of a DataLoader in the loader that draws its seed from the global generator, if none was drawn by
        `start`: a restore comes before the draw."""
        self.seen: Callable[[Any], None] | None = None
        """Called with each batch that is handed out."""

    @property
    def restorable(self) -> bool:
        """True if the loader can return and restore its position."""
        has_both = hasattr(self._loader, "state_dict") and hasattr(self._loader, "load_state_dict")
        return has_both and self.refusal is None

    @property
    def elastic(self) -> bool:
        """True if the loader declares its position valid for any number of ranks, and equal on all ranks."""
        return bool(getattr(self._loader, "elastic", False))

    def probe(self) -> str | None:
        """Read the loader's position, after `start`, and return the error if it has none. Raises StateError."""
        self.state()
        return self.refusal

    def take_consumed(self) -> dict[str, str]:
        """Return the positions of the samples that were handed out since the last call; {} if the loader has none."""
        take = getattr(self._loader, "take_consumed", None)
        return take() if take is not None else {}

    def order(self) -> tuple[dict[str, Any], dict[str, bytes]] | None:
        """Return the loader's description of its order, and the indexes in it by digest; None without one."""
        describe = getattr(self._loader, "description", None)
        if not hasattr(self._loader, "take_consumed"):
            return None
        indexes: dict[str, bytes] = {}

        def put(content: bytes) -> str:
            name = blake3.blake3(content).hexdigest()
            indexes[name] = content
            return name

        description = describe(put) if describe is not None else None
        return (description, indexes) if description is not None else None

    @property
    def workers(self) -> int:
        """Number of worker processes of the loader."""
        return int(getattr(self._loader, "num_workers", 0) or 0)

    def generators(self) -> dict[str, torch.Generator]:
        """Return the loader's own generators by name; its sampler draws an epoch's order from them."""
        owners = (self._loader, getattr(self._loader, "sampler", None))
        generators = {name: getattr(owner, "generator", None) for name, owner in zip(self.NAMES, owners, strict=True)}
        distinct: dict[str, torch.Generator] = {}
        for name, generator in generators.items():
            if isinstance(generator, torch.Generator) and all(generator is not known for known in distinct.values()):
                distinct[name] = generator
        return distinct

    def start(self) -> None:
        """Begin or continue the current epoch. Draws from generators: restore them after this."""
        if self._iterator is None:
            self._announce_epoch()
            before = torch.get_rng_state()
            self._iterator = iter(self._loader)
            if torch.equal(before, torch.get_rng_state()):
                self.undrawn = _find_seedless(self._loader)

    def next(self) -> Any:
        """Return the next batch, from the next epoch if this epoch is over. Raises EmptyLoader."""
        self.start()
        assert self._iterator is not None
        try:
            batch = next(self._iterator)
        except StopIteration:
            batch = self._first_of_next_epoch()
        if self._batches is not None:
            self._batches.add(batch)
        if self.seen is not None:
            self.seen(batch)
        return batch

    def state(self) -> dict[str, Plain]:
        """Return the position as plain data; for a loader whose `state_dict` fails, the epoch. Raises StateError."""
        state: dict[str, Plain] = {"epoch": self.epoch}
        if self.restorable:
            try:
                position = self._loader.state_dict()
            except Exception as error:  # noqa: BLE001  # a script's loader raises anything; it has no position then
                self.refusal = f"does not return its position (state_dict() raised {error!r})"
                if type(self._loader).__module__.startswith("accelerate."):
                    self.refusal += f"; {_OF_ACCELERATE}"
            else:
                state["loader"] = plain_state.encode(position, "loader")
        return state

    def restore(self, state: dict[str, Plain]) -> bool:
        """Restore a position, before `start`; return True if it is exact, or if the loader cannot restore one.

        A loader without `load_state_dict` restarts the epoch. A feed with `restart` keeps its position.
        """
        if self._restart:
            return True
        self.epoch = int(state["epoch"])
        # The epoch first: the loader's own state may place it anywhere in the epoch.
        self._announce_epoch()
        if self.restorable and "loader" in state:
            try:
                self._loader.load_state_dict(plain_state.decode(state["loader"]))
            except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
                raise plain_state.RestoreError(
                    f"the data loader does not accept its position: {error!r}", hint=_HINT
                ) from error
            self._iterator = iter(self._loader)
        return "loader" in state or not self.restorable

    def _announce_epoch(self) -> None:
        owners: tuple[Any, ...] = (
            self._loader,
            getattr(self._loader, "sampler", None),
            getattr(self._loader, "batch_sampler", None),
        )
        for owner in owners:
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(self.epoch)

    def _first_of_next_epoch(self) -> Any:
        self.epoch += 1
        self._announce_epoch()
        self._iterator = iter(self._loader)
        try:
            return next(self._iterator)
        except StopIteration as error:
            raise EmptyLoader("the data loader returned no batch in a whole epoch") from error


def _find_seedless(loader: object) -> str | None:
    """Return the attribute of a script's own loader with a DataLoader that has no generator; None without it."""
    parts = vars(loader).items() if hasattr(loader, "__dict__") and not isinstance(loader, DataLoader) else ()
    return next((name for name, part in parts if isinstance(part, DataLoader) and part.generator is None), None)


def digest(batch: object) -> str:
    """Return the digest of a batch."""
    hasher = blake3.blake3()
    update(hasher, batch)
    return str(hasher.hexdigest())


def update(into: Any, batch: object) -> None:
    """Hash a batch: types, shapes, element types and bytes, in any nesting."""
    if isinstance(batch, torch.Tensor):
        value = batch.detach()
        into.update(f"T{value.dtype}{tuple(value.shape)}".encode())
        into.update(tensor_bytes.readable(value))
    elif isinstance(batch, np.ndarray) and not batch.dtype.hasobject:
        into.update(f"A{batch.dtype.str}{batch.shape}".encode())
        into.update(batch.tobytes())
    elif isinstance(batch, dict) or hasattr(batch, "items"):
        into.update(b"{")
        for key, value in batch.items():
            update(into, key)
            update(into, value)
        into.update(b"}")
    elif isinstance(batch, (list, tuple)):
        into.update(b"[")
        for value in batch:
            update(into, value)
        into.update(b"]")
    elif isinstance(batch, (bytes, bytearray)):
        into.update(f"B{len(batch)}:".encode())
        into.update(batch)
    elif batch is None or isinstance(batch, (bool, int, float, str)):
        text = float(batch).hex() if isinstance(batch, float) else repr(batch)
        into.update(f"{type(batch).__name__}:{text};".encode())
    else:
        update(into, vars(batch) if hasattr(batch, "__dict__") else type(batch).__qualname__)

"""The restore of a session's own state, and its verification against the checkpoint.

Invariant: a session resumes only if the fingerprints of the restored state equal the saved fingerprints.
"""

from collections.abc import Mapping
from typing import Any

from m5ws.training.backends.base import Backend, Plain
from m5ws.training.checkpoint import checkpointing
from m5ws.training.dataloader import Feed
from m5ws.training.fingerprint import fingerprint
from m5ws.training.state import plain_state, rng

_HINT = "For a fork with another kind of schedule: m5ws fork … --restart schedule."


def restore_object(name: str, item: Any, source: Mapping[str, Plain], step: int, backend: Backend) -> None:
    """Restore an object of the session from plain state. Raises RestoreError."""
    if name not in source:
        raise plain_state.RestoreError(f"the checkpoint after step {step} has no {name}")
    try:
        item.load_state_dict(plain_state.decode(source[name], backend.given))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise plain_state.RestoreError(
            f"{name} does not accept its state after step {step}: {error!r}", hint=_HINT
        ) from error
    if plain_state.encode(item.state_dict(), name, backend.takes) != source[name]:
        raise plain_state.RestoreError(
            f"the state_dict of {name} differs from the restored state_dict after step {step}", hint=_HINT
        )


def verify(
    restored: checkpointing.RestoredState,
    tensors: dict[str, str],
    generators: Mapping[str, Plain],
    stored: Mapping[str, Plain],
) -> None:
    """Raise RestoreError unless the present fingerprints equal the checkpoint's, and generators their stored states.

    A generator without a stored state is of a device that the checkpoint lacks.
    """
    saved = restored.fingerprints
    if restored.rank is None:
        checkpointing.verify_fingerprints("tensors", *_alike(_bits(tensors), _bits(saved)), restored.step)
        return
    checkpointing.verify_fingerprints("tensors", *_on_their_ranks(tensors, saved), restored.step)
    present = {name: state for name, state in generators.items() if name in stored}
    checkpointing.verify_fingerprints("generators", rng.digests(present), rng.digests(stored), restored.step)


def is_elastic(feed: Feed | None, restored: checkpointing.RestoredState) -> bool:
    """Return True if the position in the data is known for any number of ranks."""
    return feed is not None and feed.elastic and feed.restorable and "loader" in restored.common.get("feed", {})


def unrestored(feed: Feed | None, restored: checkpointing.RestoredState, world: int) -> str:
    """Return the list of state that a checkpoint of another number of ranks does not restore."""
    start = f"the checkpoint was made by {restored.world} ranks and there are {world} now"
    if is_elastic(feed, restored):
        return f"{start}: not restored: {', '.join(restored.dropped)}. The loader's position is restored"
    why = " (that needs a loader with elastic = True)" if feed is not None else ""
    return f"{start}: not restored: {', '.join((*restored.dropped, f'the position in the data{why}'))}"


def _alike(restored: dict[str, str], saved: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return both without entries that differed between ranks: another number of ranks does not have these."""
    apart = {name.rpartition("@")[0] for name in saved if "@" in name}
    restored, saved = (
        {name: value for name, value in values.items() if name.partition("@")[0] not in apart}
        for values in (restored, saved)
    )
    return restored, saved


def _on_their_ranks(restored: dict[str, str], saved: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return both, without the ranks that hold a tensor if the model is on other ranks than when it was saved."""
    if all(value == saved.get(name) for name, value in restored.items() if name.startswith("model.")):
        return restored, saved
    return _bits(restored), _bits(saved)


def _bits(values: dict[str, str]) -> dict[str, str]:
    return {name: fingerprint.bits(value) for name, value in values.items()}

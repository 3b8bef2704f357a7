"""Pins: the versions and the image that a run observed, as keys of [environment] in m5ws.toml.

A pin is exact, and the run itself meets it. A name that the run did not record stays as it is, and is reported.
"""

from collections.abc import Mapping

import msgspec

from m5ws.config.toml_edit import with_value
from m5ws.containers import engines
from m5ws.environment import drift, recorded
from m5ws.errors import NotFound
from m5ws.records.environment import IMAGE, Observed, same_image
from m5ws.repository.repository import Repository
from m5ws.runs import state

NAMES = ("python", "torch", "cuda", "cudnn", "nccl", "libfabric", "ofi-nccl", "efa", "driver")
"""Versions that are pinned besides the names in [environment] wanted. Lock files pin the distributions."""


class Pins(msgspec.Struct, frozen=True, kw_only=True):
    """Values for [environment], and notes for the user. `wanted` has versions by name."""

    image: str | None = None
    wanted: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()


def of_run(repo: Repository, run: str, wanted: Mapping[str, str]) -> Pins:
    """Return the versions and the image of a run's newest attempt. `wanted` has the versions in m5ws.toml.

    An image is pinned if a runtime or an engine stated it by digest. Raises NotFound if nothing can be pinned.
    """
    newest = state.load_newest(repo, run)
    observed = recorded.of_attempt(repo, run, newest.newest.attempt) if newest.newest else Observed()
    values = {name: drift.version_of(name, observed) for name in (*NAMES, *wanted)}
    # Without the package that has a version, as in `2.28.9 (nvidia-nccl-cu13)`, and without the local part.
    exact = {name: value.split(maxsplit=1)[0].partition("+")[0] for name, value in values.items() if value}
    notes = [f"{name} {wanted[name]} stays: run {run} did not record {name}" for name in wanted if name not in exact]
    if newest.standing != "finished":
        notes.append(f"run {run} is {newest.standing}, and not finished")
    stated, claimed, source = (observed.facts.get(f"container.image{part}") for part in ("", ".unverified", ".source"))
    image = stated if IMAGE.fullmatch(stated or "") else None
    if image is None and (stated or claimed):
        reason = "it has no digest" if stated else f"its only source is {source}"
        notes.append(f"image {stated or claimed} is not pinned: {reason}. `m5ws pin --image NAME` pins an image")
    if not exact and image is None:
        raise NotFound(f"run {run} recorded no version that can be pinned", hint="Pin a run whose script began.")
    return Pins(image=image, wanted=exact, notes=tuple(notes))


def with_image(pins: Pins, environment: Mapping[str, str], image: str, pinned: str | None) -> Pins:
    """Return pins with an image by digest, as the container engine names it. `pinned` is the image in m5ws.toml.

    An image can have several digests, and `pinned` stays if its digest is among them. Raises NoEngine, EngineError.
    """
    engine = engines.answering(environment)
    new = engines.digest(engine, image)
    if any(same_image(pinned, name) for name in engines.digests(engine, image)):
        return msgspec.structs.replace(pins, image=pinned)
    (old_name, _, old_digest), (name, _, digest) = (pinned or "").partition("@"), new.partition("@")
    moved = (f"{name} was {old_digest}, is {digest}",) if old_name == name else ()
    return msgspec.structs.replace(pins, image=new, notes=(*pins.notes, *moved))


def edited(text: str, pins: Pins) -> str:
    """Return the text of m5ws.toml with the pins, the image first."""
    for name, version in reversed([*pins.wanted.items()]):
        text = with_value(text, ("environment", "wanted", name), version)
    return text if pins.image is None else with_value(text, ("environment", "image"), pins.image)

"""`--set key=value`: a change of an argument of the command, of a key of the config files, or of the seed.

A config file itself is changed, so a run has exactly one snapshot, and its script reads the usual file. Only the named
keys change. If another key would change too (a YAML alias of the same mapping), the override fails.
"""

import difflib
import json
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Literal

import msgspec

from m5ws import secret_gate
from m5ws.config.commands import arguments
from m5ws.config.flatten import flatten
from m5ws.errors import UsageError
from m5ws.records.base import Digest
from m5ws.records.run import LaunchSpec
from m5ws.records.snapshot import Annotation
from m5ws.repository.files import trees
from m5ws.repository.publishing import repeated
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot.config import edit

_FORM = re.compile(
    r"(?P<add>\+?)(?:(?P<file>command|[^=:]+\.(?:ya?ml|json|toml)):)?(?P<key>[^=]+)=(?P<value>.*)", re.DOTALL
)
_HINT = "Write key=value with the key as `m5ws diff` names it (optimizer.lr=0.001), or +key=value for a new one."
Target = Literal["config", "argument", "seed"]
_COMMAND = "command"
_BOOLEANS = (("true", "yes", "on"), ("false", "no", "off"))


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """One parsed `--set`. `file` is the part with the key: a config file, `command`, or None; `add`: the key is new.

    `option` is the option of the command line that `text` was given to.
    """

    text: str
    file: str | None
    key: str
    value: str
    add: bool
    option: str = "--set"

    @property
    def label(self) -> str:
        """The option with its text, for messages."""
        return f"{self.option} {self.text!r}"

    def word(self, value: str) -> str:
        """Return the option with another value, as it is typed in a shell."""
        return f"{self.option} {shlex.quote(self.text.partition('=')[0] + '=' + value)}"


def parse(text: str, option: str = "--set") -> Override:
    """Return the override in `[+][FILE:|command:]KEY=VALUE`. Raises UsageError, SecretText."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"{option} {text!r} is not of the form key=value", hint=_HINT)
    key = match["key"].strip()
    secret_gate.refuse_value(option, key, match["value"])
    add = bool(match["add"])
    return Override(text=text, file=match["file"], key=key, value=match["value"], add=add, option=option)


def change(repo: Repository, snapshot_id: Digest, spec: LaunchSpec, texts: Sequence[str]) -> tuple[Digest, LaunchSpec]:
    """Return a snapshot and a launch with changes, after publishing the snapshot.

    Raises UsageError for a key that neither the command nor the config has, and for a value that the config refuses.
    """
    files = config_files(repo, snapshots.load(repo, snapshot_id).config) if texts else {}
    overrides = list(map(parse, texts))
    return apply(repo, snapshot_id, spec, [(target(files, spec, override), override) for override in overrides])


def target(files: Mapping[str, bytes], spec: LaunchSpec, override: Override) -> Target:
    """Return the part of a run that has the key of an override. Raises UsageError if no part has it, or two."""
    key, known = override.key, keys(files)
    if override.add or override.file not in (None, _COMMAND):
        return "config"
    in_command = arguments.replace(spec.command, key, "") is not None
    holders = [name for name, values in known.items() if edit.below(values, key)] if override.file is None else []
    if in_command and holders:
        places = " or ".join(f"{override.option} {place}:{override.text}" for place in (_COMMAND, *holders))
        raise UsageError(
            f"{override.label}: the command has an argument {key}, and {holders[0]} a key", hint=f"Write {places}."
        )
    if in_command or holders:
        return "argument" if in_command else "config"
    if key == "seed" and override.value.isdecimal():
        return "seed"
    if key == "seed":
        raise UsageError(f"{override.label}: {override.value!r} is not a whole number of at least 0")
    typed = [name for name in arguments.parse(spec.command, lambda _: None).values if not name.isdecimal()]
    if key.lstrip("-").replace("-", "_") in typed or override.file is not None or not (files or typed):
        words = shlex.join([*spec.command, f"--{key.lstrip('-')}", override.value])
        raise UsageError(
            f"{override.label}: the command has no argument {key} with one value, and the config has no such key",
            hint=f"Flags, lists and new arguments are given in the command: -- {words}",
        )
    raise unknown(override, [*(each for values in known.values() for each in values), *typed])


def apply(
    repo: Repository, snapshot_id: Digest, spec: LaunchSpec, changes: Sequence[tuple[Target, Override]]
) -> tuple[Digest, LaunchSpec]:
    """Return a snapshot and a launch with changes of given parts, after publishing the snapshot. Raises UsageError."""
    for part, override in changes:
        if part == "seed":
            spec = msgspec.structs.replace(spec, seed=int(override.value))
        elif part == "argument" and (command := arguments.replace(spec.command, override.key, override.value)):
            spec = msgspec.structs.replace(spec, command=command)
    texts = [override.text for part, override in changes if part == "config"]
    return derive(repo, snapshot_id, texts) if texts else snapshot_id, spec


def derive(repo: Repository, snapshot_id: Digest, overrides: Sequence[str]) -> Digest:
    """Publish the snapshot with `overrides` applied to its config files, in order, and return its id.

    If they change nothing, that is `snapshot_id`. Raises UsageError for an unknown key.
    """
    base = snapshots.load(repo, snapshot_id)
    before = config_files(repo, base.config)
    after = changed(before, map(parse, overrides))
    if after == before:
        return snapshot_id

    names = {name for name in after if after[name] != before[name]}

    def attempt() -> Digest:
        tree = trees.located(repo.objects, repo.locations, base.config)
        texts = {entry.path: after[entry.name] for entry in tree.entries if entry.name in names}
        config = trees.rewrite_tree(repo.objects, repo.locations, tree.entries, texts, [base.config])
        annotation = _annotation(repo, snapshot_id, tuple(overrides))
        # Published from here on: the new config tree is durable, and the other objects of the snapshot were before.
        return snapshots.publish(repo, msgspec.structs.replace(base, config=config), annotation)

    return repeated(attempt)


def config_files(repo: Repository, config: Digest) -> dict[str, bytes]:
    """Return the config files of a snapshot by name, from the tree of its config."""
    tree = trees.located(repo.objects, repo.locations, config)
    return {
        entry.name: trees.read_file(repo.objects, repo.locations, entry) for entry in tree.entries if entry.link is None
    }


def keys(files: Mapping[str, bytes]) -> dict[str, edit.Values]:
    """Return the keys and values of config files, by the name of the file."""
    return {name: flatten(name, data) or {} for name, data in files.items()}


def changed(files: Mapping[str, bytes], overrides: Iterable[Override]) -> dict[str, bytes]:
    """Return config files by name, with `overrides` applied. Raises UsageError."""
    result = dict(files)
    for override in overrides:
        known = keys(result)
        name = _file(known, override)
        if not known[name]:
            edit.check(name, result[name])
        result[name] = _set(name, result[name], known[name], override)
    return result


def _file(known: Mapping[str, edit.Values], override: Override) -> str:
    """Return the name of the file that an override changes."""
    if not known:
        hint = "Add config files to m5ws.toml: [config] files."
        raise UsageError(f"{override.label}: the snapshot has no config file", hint=hint)
    if override.file is not None:
        return _named_file(known, override.file, override.label)
    holders = [name for name, values in known.items() if edit.below(values, override.key)]
    if len(holders) == 1 or (len(known) == 1 and override.add):
        return (holders or list(known))[0]
    if holders:
        raise UsageError(
            f"{override.label}: the key is in {' and '.join(holders)}",
            hint=f"Name the file: {override.option} {holders[0]}:{override.text}",
        )
    if override.add:
        first = next(iter(known))
        raise UsageError(
            f"{override.label}: the snapshot has several config files",
            hint=f"Name the file: {override.option} +{first}:{override.text[1:]}",
        )
    raise unknown(override, [key for values in known.values() for key in values])


def _named_file(files: Iterable[str], wanted: str, label: str) -> str:
    """Return the config file with this path, or else with this last part of a path. Raises UsageError."""
    same = [name for name in files if wanted in (name, PurePosixPath(name).name)]
    if wanted in same or len(same) == 1:
        return wanted if wanted in same else same[0]
    raise UsageError(f"{label}: {wanted} is not one of the config files {', '.join(files)}")


def unknown(override: Override, known: Sequence[str]) -> UsageError:
    """Return the error for a key that nothing has, with those of the `known` keys that are like it."""
    close = difflib.get_close_matches(override.key, known, n=3, cutoff=0.5)
    last = override.key.rsplit(".", 1)[-1]
    close += [key for key in known if key.rsplit(".", 1)[-1] == last and key not in close][:3]
    means = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
    return UsageError(f"{override.label}: unknown key {override.key}; {means}", hint=_HINT)


def _set(name: str, data: bytes, old: edit.Values, override: Override) -> bytes:
    """Return a file with one key set, or the same bytes if the key has that value already."""
    key = override.key
    if override.add and edit.below(old, key):
        raise UsageError(f"{override.label}: {name} already has {key}", hint="Remove the +.")
    if not override.add and not edit.below(old, key):
        raise unknown(override, list(old))
    try:
        edited = edit.with_value(name, data, old, key, override.value)
    except ValueError as error:
        raise UsageError(
            f"{override.label}: the value cannot be in {name}: {error}", hint="Quote text: key='\"text\"'."
        ) from error
    if edited is None:
        raise _misread(name, data, old, override)
    result, new = edited
    differing = {each for each in old.keys() | new.keys() if old.get(each) != new.get(each)}
    shared = {each for each in differing if each != key and not each.startswith(f"{key}.")}
    shared -= {each for each in shared if each in old and each not in new and key.startswith(f"{each}.")}
    if shared:
        raise UsageError(
            f"{override.label} would also change {', '.join(sorted(shared))} in {name}",
            hint="These keys share one mapping (a YAML anchor). Write each mapping separately.",
        )
    return result


def _misread(name: str, data: bytes, old: edit.Values, override: Override) -> UsageError:
    """Return the error for a value that a reader would take for another value, or for one of another type."""
    value, typed, types = (
        override.value.strip(),
        edit.readings(override.value),
        edit.types(edit.below(old, override.key)),
    )
    # PyYAML reads `no` as false. Words for the same value are tried, and the numbers that readers see.
    words = [word for words in _BOOLEANS if value.lower() in words for word in words]
    numbers = [each[""] for each in typed if edit.types(each) == {"a number"}]
    words += [*numbers, *map(_without_dot, numbers)]
    usable = [word for word in dict.fromkeys(words) if edit.with_value(name, data, old, override.key, word)]
    if edit.types(typed[0]) == {"text"} and types in ({"a number"}, {"a boolean"}):
        problem = f"{override.key} is {types.pop()} in {name}, and {value!r} is text"
    else:
        problem = f"readers of YAML 1.1, such as PyYAML, and of YAML 1.2 differ about {override.key} in {name}"
    text = f"To set text, quote the value: {override.word(json.dumps(value, ensure_ascii=False))}."
    return UsageError(
        f"{override.label}: {problem}", hint=" ".join([*(f"Write {override.word(each)}." for each in usable[:2]), text])
    )


def _without_dot(number: str) -> str:
    """Return a number with an exponent and no dot: text to PyYAML, a number in YAML 1.2."""
    sign, digits, exponent = Decimal(number).normalize().as_tuple()
    return f"{'-' * sign}{''.join(map(str, digits))}e{exponent}"


def _annotation(repo: Repository, snapshot_id: Digest, overrides: tuple[str, ...]) -> Annotation:
    """Return the annotation of a derived snapshot, with author, branch and remote of its base."""
    annotations = snapshots.annotations(repo, snapshot_id)
    origin = annotations[-1] if annotations else Annotation(created_s=0.0)
    return msgspec.structs.replace(
        origin, created_s=time.time(), message=None, notes=(), derived_from=snapshot_id, overrides=overrides
    )

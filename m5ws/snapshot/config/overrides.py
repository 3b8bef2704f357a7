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
from pathlib import PurePosixPath

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
_HINT = "Write key=value with the key as `m5ws diff` names it (optimizer.lr=0.001), or +key=value for a new key."
COMMAND, SEED = "command", "seed"
"""Places of keys besides the config files."""


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


def change(
    repo: Repository, snapshot_id: Digest, spec: LaunchSpec, texts: Sequence[str], option: str = "--set"
) -> tuple[Digest, LaunchSpec]:
    """Return a snapshot and a launch with changes, in order, after publishing the snapshot if it is new.

    Raises UsageError for a key that neither the command nor the config has, and for a value that the config refuses.
    """
    if not texts:
        return snapshot_id, spec
    base = snapshots.load(repo, snapshot_id)
    before = config_files(repo, base.config)
    after, spec, applied = changed(before, spec, [parse(text, option) for text in texts])
    names = {name for name in after if after[name] != before[name]}

    def attempt() -> Digest:
        tree = trees.load(repo.objects, base.config)
        contents = {entry.path: after[entry.name] for entry in tree.entries if entry.name in names}
        config = trees.rewrite_tree(repo.objects, tree.entries, contents, tree.packs)
        annotation = _annotation(repo, snapshot_id, applied)
        # Published from here on: the new config tree is durable, and the other objects of the snapshot were before.
        return snapshots.publish(repo, msgspec.structs.replace(base, config=config), annotation)

    return repeated(attempt) if names else snapshot_id, spec


def config_files(repo: Repository, config: Digest) -> dict[str, bytes]:
    """Return the config files of a snapshot by name, from the tree of its config."""
    tree = trees.load(repo.objects, config)
    return {entry.name: trees.read_file(repo.objects, entry) for entry in tree.entries if entry.link is None}


def changed(
    files: Mapping[str, bytes], spec: LaunchSpec, overrides: Iterable[Override]
) -> tuple[dict[str, bytes], LaunchSpec, tuple[str, ...]]:
    """Return config files by name and a launch, with `overrides` applied, and the overrides that changed a file.

    Raises UsageError.
    """
    result, applied = dict(files), list[str]()
    for override in overrides:
        known = {name: flatten(name, data) or {} for name, data in result.items()}
        place = find_place(known, spec.command, override)
        if place == COMMAND:
            command = arguments.replace(spec.command, override.key, override.value) or spec.command
            spec = msgspec.structs.replace(spec, command=command)
        elif place == SEED:
            spec = msgspec.structs.replace(spec, seed=int(override.value))
        else:
            if not known[place]:
                edit.check(place, result[place])
            result[place] = _set(place, result[place], known[place], override)
            applied.append(override.text)
    return result, spec, tuple(applied)


def find_place(known: Mapping[str, edit.Values], command: Sequence[str], override: Override) -> str:
    """Return the place of a key: `COMMAND`, `SEED`, or the name of a config file. `known` has the keys of each file.

    Raises UsageError if no place has the key, or if several have it.
    """
    key, is_named = override.key, override.file is not None
    if is_named and override.file != COMMAND:
        return _named_file(known, override)
    is_argument = not override.add and arguments.replace(command, key, "") is not None
    holders = [name for name, values in known.items() if edit.below(values, key) and not is_named]
    places = [COMMAND] * is_argument + (list(known) if override.add and not holders else holders)
    if len(places) > 1:
        words = " or ".join(
            f"{override.option} {'+' * override.add}{place}:{override.text.removeprefix('+')}" for place in places
        )
        raise UsageError(f"{override.label}: {' and '.join(places)} can have the key", hint=f"Name the place: {words}")
    if not places and key == SEED and not is_named and not override.add:
        if override.value.isdecimal():
            return SEED
        raise UsageError(f"{override.label}: {override.value!r} is not a whole number of at least 0")
    if not places:
        raise _unknown(known, command, override)
    return places[0]


def _named_file(files: Iterable[str], override: Override) -> str:
    """Return the config file with the path of an override, or else with this last part of a path. Raises UsageError."""
    wanted = override.file
    same = [name for name in files if wanted in (name, PurePosixPath(name).name)]
    if wanted in same or len(same) == 1:
        return wanted if wanted in same and wanted is not None else same[0]
    raise UsageError(f"{override.label}: {wanted} is not one of the config files {', '.join(files)}")


def _unknown(known: Mapping[str, edit.Values], command: Sequence[str], override: Override) -> UsageError:
    """Return the error for a key that no place has, with the keys that are like it."""
    named = [name for name in arguments.parse(command, lambda _: None).values if not name.isdecimal()]
    keys = [*(key for values in known.values() for key in values), *named]
    if override.key.lstrip("-").replace("-", "_") in named or not keys:
        words = shlex.join([*command, f"--{override.key.lstrip('-')}", override.value])
        return UsageError(
            f"{override.label}: the command has no argument {override.key} with one value, and no config file has it",
            hint=f"Flags, lists and new arguments are given in the command: -- {words}",
        )
    close = difflib.get_close_matches(override.key, keys, n=3, cutoff=0.5)
    last = override.key.rsplit(".", 1)[-1]
    close += [key for key in keys if key.rsplit(".", 1)[-1] == last and key not in close][:3]
    means = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(keys)}"
    return UsageError(f"{override.label}: unknown key {override.key}; {means}", hint=_HINT)


def _set(name: str, data: bytes, old: edit.Values, override: Override) -> bytes:
    """Return a file with one key set, or the same bytes if the key has that value already."""
    key = override.key
    if override.add and edit.below(old, key):
        raise UsageError(f"{override.label}: {name} already has {key}", hint="Remove the +.")
    if not override.add and not edit.below(old, key):
        raise _unknown({name: old}, (), override)
    try:
        result, new = edit.with_value(name, data, old, key, override.value)
    except ValueError as error:
        raise UsageError(
            f"{override.label}: the value cannot be in {name}: {error}", hint="Quote text: key='\"text\"'."
        ) from error
    _refuse_text(name, override, edit.seen_types(name, data, old, key), edit.types(edit.below(new, key)))
    differing = {each for each in old.keys() | new.keys() if old.get(each) != new.get(each)}
    shared = {each for each in differing if each != key and not each.startswith(f"{key}.")}
    shared -= {each for each in shared if each in old and each not in new and key.startswith(f"{each}.")}
    if shared:
        raise UsageError(
            f"{override.label} would also change {', '.join(sorted(shared))} in {name}",
            hint="These keys share one mapping (a YAML anchor). Write each mapping separately.",
        )
    return result


def _refuse_text(name: str, override: Override, before: set[str], after: set[str]) -> None:
    """Raise UsageError for text in the place of a number or boolean, unless it has quotes or refers to another key."""
    value = override.value.strip()
    replaced = before & {"a number", "a boolean"}
    if replaced and after == {"text"} and value[:1] not in ("'", '"') and "${" not in value:
        text = override.word(json.dumps(value, ensure_ascii=False))
        hint = "Booleans are true and false. " if "a boolean" in replaced else ""
        raise UsageError(
            f"{override.label}: {override.key} is {replaced.pop()} in {name}, and {value!r} is text",
            hint=f"{hint}To set text, quote the value: {text}.",
        )


def _annotation(repo: Repository, snapshot_id: Digest, overrides: tuple[str, ...]) -> Annotation:
    """Return the annotation of a derived snapshot, with author, branch and remote of its base."""
    annotations = snapshots.annotations(repo, snapshot_id)
    origin = annotations[-1] if annotations else Annotation(created_s=0.0)
    return msgspec.structs.replace(
        origin, created_s=time.time(), message=None, notes=(), derived_from=snapshot_id, overrides=overrides
    )

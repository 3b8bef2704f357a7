"""`--set key=value`: derives a snapshot that differs from another only in config values, and is annotated with them.

The config file itself is changed, so a run has exactly one snapshot, and its script reads the usual file. Only the
named keys change. If another key would change too (a YAML alias of the same mapping), the override fails.
"""

import difflib
import re
import tempfile
import time
from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from m5ws import secret_gate
from m5ws.config.flatten import flatten
from m5ws.errors import UsageError
from m5ws.records.base import Digest
from m5ws.records.snapshot import Annotation
from m5ws.records.tree import Entry, Tree, path_text
from m5ws.repository.files import trees
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.materialise import materialise
from m5ws.repository.publishing import repeated
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot.config import edit

_FORM = re.compile(r"(?P<add>\+?)(?:(?P<file>[^=:]+\.(?:ya?ml|json|toml)):)?(?P<key>[^=]+)=(?P<value>.*)", re.DOTALL)
_HINT = "Write key=value with the key as `m5ws diff` names it (optimizer.lr=0.001), or +key=value for a new one."


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """One parsed `--set`. `file` is None if the key identifies the file; `add`: the key is new.

    `option` is the option of the command line that `text` was given to.
    """

    text: str
    file: str | None
    key: str
    value: object
    add: bool
    option: str = "--set"

    @property
    def label(self) -> str:
        """The option with its text, for messages."""
        return f"{self.option} {self.text!r}"


def parse(text: str, option: str = "--set") -> Override:
    """Return the override in `[+][FILE:]KEY=VALUE`; the value is read as YAML. Raises UsageError, SecretText."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"{option} {text!r} is not of the form key=value", hint=_HINT)
    secret_gate.refuse_value(option, match["key"].strip(), match["value"])
    try:
        value = edit.scalar(match["value"])
    except ValueError as error:
        raise UsageError(
            f"{option} {text!r}: the value is not valid YAML: {error}", hint="Quote it: key='\"text\"'."
        ) from error
    file, key, add = match["file"], match["key"].strip(), bool(match["add"])
    return Override(text=text, file=file, key=key, value=value, add=add, option=option)


def derive(repo: Repository, snapshot_id: Digest, overrides: Sequence[str]) -> Digest:
    """Publish the snapshot with `overrides` applied to its config files, in order, and return its id.

    If they change nothing, that is `snapshot_id`. Raises UsageError for an unknown key.
    """
    base = snapshots.load(repo, snapshot_id)
    tree = trees.located(repo.objects, repo.locations, base.config)
    before = _files(repo, tree)
    after = changed(before, [parse(text) for text in overrides])
    if after == before:
        return snapshot_id

    texts = {entry.path: after[entry.name] for entry in tree.entries if after.get(entry.name) != before.get(entry.name)}

    def attempt() -> Digest:
        config = rewrite_tree(repo, tree.entries, texts)
        annotation = _annotation(repo, snapshot_id, tuple(overrides))
        # Published from here on: the new config tree is durable, and the other objects of the snapshot were before.
        return snapshots.publish(repo, msgspec.structs.replace(base, config=config), annotation)

    return repeated(attempt)


def config_files(repo: Repository, config: Digest) -> dict[str, bytes]:
    """Return the config files of a snapshot by name, from the tree of its config."""
    return _files(repo, trees.located(repo.objects, repo.locations, config))


def _files(repo: Repository, tree: Tree) -> dict[str, bytes]:
    return {
        entry.name: trees.read_file(repo.objects, repo.locations, entry) for entry in tree.entries if entry.link is None
    }


def holds(files: Mapping[str, bytes], key: str) -> bool:
    """Return True if a config file has a key."""
    return any(_holds(name, data, key) for name, data in files.items())


def changed(files: Mapping[str, bytes], overrides: Iterable[Override]) -> dict[str, bytes]:
    """Return config files by name, with `overrides` applied. Raises UsageError."""
    result = dict(files)
    for override in overrides:
        name = _file(result, override)
        keys = flatten(name, result[name])
        if keys is None:
            edit.check(name, result[name])
        result[name] = _set(name, result[name], override)
    return result


def _file(files: Mapping[str, bytes], override: Override) -> str:
    """Return the name of the file that an override changes."""
    if not files:
        raise UsageError(
            f"{override.label}: the snapshot has no config file",
            hint="Add config files to m5ws.toml: [config] files. An argument of the command is no config key: give the "
            f"command with another value after `--`, or use `m5ws run --sweep {override.key}=…`.",
        )
    if override.file is not None:
        return _named_file(files, override.file, override.label)
    holders = [name for name, data in files.items() if _holds(name, data, override.key)]
    if len(holders) == 1 or (len(files) == 1 and override.add):
        return (holders or list(files))[0]
    if holders:
        raise UsageError(
            f"{override.label}: the key is in {' and '.join(holders)}",
            hint=f"Name the file: {override.option} {holders[0]}:{override.text}",
        )
    if override.add:
        first = next(iter(files))
        raise UsageError(
            f"{override.label}: the snapshot has several config files",
            hint=f"Name the file: {override.option} +{first}:{override.text[1:]}",
        )
    raise _unknown(override, [key for name, data in files.items() for key in flatten(name, data) or {}])


def _named_file(files: Mapping[str, bytes], wanted: str, label: str) -> str:
    """Return the config file with this path, or else with this last part of a path. Raises UsageError."""
    if wanted in files:
        return wanted
    same = [name for name in files if PurePosixPath(name).name == wanted]
    if len(same) == 1:
        return same[0]
    raise UsageError(f"{label}: {wanted} is not one of the config files {', '.join(files)}")


def _holds(name: str, data: bytes, key: str) -> bool:
    keys = flatten(name, data) or {}
    return key in keys or any(known.startswith(key + ".") for known in keys)


def _unknown(override: Override, known: Sequence[str]) -> UsageError:
    close = difflib.get_close_matches(override.key, known, n=3, cutoff=0.5)
    last = override.key.rsplit(".", 1)[-1]
    close += [key for key in known if key.rsplit(".", 1)[-1] == last and key not in close][:3]
    means = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
    return UsageError(f"{override.label}: unknown key {override.key}; {means}", hint=_HINT)


def _set(name: str, data: bytes, override: Override) -> bytes:
    """Return a file with one key set, or the same bytes if the key has that value already."""
    old = flatten(name, data) or {}
    if not override.add and not _holds(name, data, override.key):
        raise _unknown(override, list(old))
    if override.add and _holds(name, data, override.key):
        raise UsageError(f"{override.label}: {name} already has {override.key}", hint="Remove the +.")

    def change(document: Any) -> Any:
        _assign(document, override.key.split("."), override, name)
        return document

    result = edit.edit(name, data, change)
    new = flatten(name, result) or {}
    if new == old:
        return data
    differing = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    shared = {key for key in differing if key != override.key and not key.startswith(override.key + ".")}
    shared -= {key for key in shared if key in old and key not in new and override.key.startswith(key + ".")}
    if shared:
        raise UsageError(
            f"{override.label} would also change {', '.join(sorted(shared))} in {name}",
            hint="These keys share one mapping (a YAML anchor). Write each mapping separately.",
        )
    return result


def _assign(node: Any, parts: Sequence[str], override: Override, name: str) -> None:
    """Set the key in a part of a parsed document. Keys may contain dots themselves."""
    if isinstance(node, MutableMapping):
        for length in range(1, len(parts) + 1):
            key = _key(node, ".".join(parts[:length]))
            if key is not None and length == len(parts):
                _refuse_text(node[key], override, name)
                node[key] = _styled(override.value, name, override)
                return
            if key is not None:
                _assign(node[key], parts[length:], override, name)
                return
        if not override.add:
            raise UsageError(f"{override.label}: unknown key {override.key}", hint=_HINT)
        nested: object = _styled(override.value, name, override)
        for part in reversed(parts[1:]):
            nested = {part: nested}
        node[parts[0]] = nested
    elif isinstance(node, MutableSequence) and parts[0].isdecimal() and int(parts[0]) < len(node):
        if len(parts) > 1:
            _assign(node[int(parts[0])], parts[1:], override, name)
        else:
            _refuse_text(node[int(parts[0])], override, name)
            node[int(parts[0])] = _styled(override.value, name, override)
    else:
        raise UsageError(f"{override.label}: {override.key} is not below a mapping or list in {name}")


def _refuse_text(old: object, override: Override, name: str) -> None:
    """Raise UsageError for unquoted text that replaces a number or a boolean, except for a reference to another key."""
    kind = "a boolean" if isinstance(old, bool) else "a number" if isinstance(old, int | float) else None
    text = override.text.partition("=")[2].strip()
    if kind is None or not isinstance(override.value, str) or text[:1] in ("'", '"') or "${" in text:
        return
    raise UsageError(
        f"{override.label}: {override.key} is {kind} in {name}, and {override.value!r} is text",
        hint=f"To set text, quote the value: {override.option} '{override.key}=\"{override.value}\"'.",
    )


def _key(node: Mapping[Any, Any], text: str) -> Any:
    """Return the key of a mapping whose text is `text`, None without one. Keys in YAML may be numbers."""
    return next((key for key in node if str(key) == text), None)


def _styled(value: object, name: str, override: Override) -> object:
    """Return a value in a style that all readers of the file format read alike."""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in (".yaml", ".yml"):
        return edit.yaml_styled(value)
    if suffix == ".toml" and value is None:
        raise UsageError(f"{override.label}: TOML has no null")
    return value


def rewrite_tree(repo: Repository, entries: Sequence[Entry], texts: Mapping[bytes, bytes]) -> Digest:
    """Make a tree of `entries` durable, some with new content, by path. It is packed from files, like a snapshot."""
    with tempfile.TemporaryDirectory(prefix="m5ws-tree-") as folder:
        work = Path(folder) / "files"
        materialise(repo.objects, repo.locations, [Tree(entries=tuple(entries))], work, read_only=False)
        for path, text in texts.items():
            (work / path_text(path)).write_bytes(text)
        sources = [SourceFile(path=entry.path, location=work / path_text(entry.path)) for entry in entries]
        return trees.write_tree(repo.objects, repo.locations, sources).digest


def _annotation(repo: Repository, snapshot_id: Digest, overrides: tuple[str, ...]) -> Annotation:
    """Return the annotation of a derived snapshot, with author, branch and remote of its base."""
    annotations = snapshots.annotations(repo, snapshot_id)
    origin = annotations[-1] if annotations else Annotation(created_s=0.0)
    return msgspec.structs.replace(
        origin, created_s=time.time(), message=None, notes=(), derived_from=snapshot_id, overrides=overrides
    )

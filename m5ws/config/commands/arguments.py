"""Arguments of a script as named parameters, so that two commands can be compared by name.

`--key value`, `--key=value`, `--flag`, `--no-flag` and Hydra's `a.b=c` are parameters, and so are the keys of a JSON,
YAML or TOML file that the command names. Pure: derived from the command of a run, so runs of any age have them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from m5ws.config.commands import launchers
from m5ws.config.flatten import flatten, plain

ReadFile = Callable[[str], bytes | None]
"""Returns a file of the run's code by its path, None if there is none."""

_NUMBER = re.compile(r"[+-]?(\d|\.\d|inf|nan)")
_OVERRIDE = re.compile(r"(?:\+{0,2}|~)([A-Za-z_][\w./@-]*)")
"""Hydra's grammar: https://hydra.cc/docs/advanced/override_grammar/basic"""
_FILES = (".json", ".yaml", ".yml", ".toml")
_DELETED = "deleted"


class NamedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the command names, with its keys. Names of their parameters begin with `prefix`."""

    path: str
    prefix: str
    keys: dict[str, str]


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """The launcher and the script (or `-m` and its module), its arguments by name, and the files that they name.

    Names have `_` for `-`. Arguments without a name are numbered from 1.
    """

    script: tuple[str, ...]
    values: dict[str, str]
    files: dict[str, NamedFile] = {}

    def parameters(self) -> dict[str, str]:
        """Return all parameters: arguments, and keys of files that no argument has."""
        keys = {f"{file.prefix}{key}": value for file in self.files.values() for key, value in file.keys.items()}
        return keys | self.values


def split(command: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the launcher and the script, or `-m` and its module, and the script's arguments."""
    typed = launchers.read(command)
    words = typed.script or typed.launcher
    count = 2 if words[:1] == ("-m",) else 1
    return (typed.launcher if typed.script else ()) + words[:count], words[count:]


def parse(command: Sequence[str], read: ReadFile) -> Arguments:
    """Return the arguments of a command, with the keys of the files that they name."""
    script, words = split(command)
    values = _values(words)
    named = {name: value for name, value in values.items() if value.lower().endswith(_FILES)}
    numbered = [name for name in named if name.isdigit()]
    files: dict[str, NamedFile] = {}
    for name, value in named.items():
        content = read(value)
        if content is not None and (keys := flatten(value, content)) is not None:
            prefix = "" if numbered == [name] else f"{name}."
            files[name] = NamedFile(path=value, prefix=prefix, keys={key: plain(text) for key, text in keys.items()})
    return Arguments(script=script, values=values, files=files)


def replace(command: Sequence[str], name: str, value: str) -> tuple[str, ...] | None:
    """Return a command with another value of a named argument.

    None if the command does not have the argument once and with one value.
    """
    script, words = split(command)
    places = [word for word in _read(words) if _label(word.name) == _label(name) and word.text is not None]
    if len(places) != 1 or not places[0].can_change:
        return None
    position = places[0].position
    return (*script, *words[:position], f"{places[0].head}{value}", *words[position + 1 :])


class _Word(NamedTuple):
    """A word with the argument that it belongs to. `text` is its value after `head`; None for an option alone."""

    name: str
    position: int
    head: str
    text: str | None
    can_change: bool = True


def _read(words: Sequence[str]) -> Iterator[_Word]:
    """Yield all words but the first `--`. Words after it, and words that belong to no option, are numbered."""
    ended = words.index("--") if "--" in words else len(words)
    option, has_value, numbered = None, False, 0
    for position, word in enumerate(words):
        head, equals, text = word.partition("=")
        override = _OVERRIDE.fullmatch(head) if equals or word.startswith("~") else None
        if position < ended and _is_option(word):
            option, has_value = None if equals else _label(head), False
            yield _Word(_label(head), position, head + equals, text if equals else None)
        elif position < ended and override is not None and (option is None or has_value):
            option = None
            yield _Word(override[1], position, head + equals, text if equals else _DELETED, can_change=bool(equals))
        elif position < ended and option is not None:
            has_value = True
            yield _Word(option, position, "", word)
        elif position != ended:
            numbered += 1
            yield _Word(str(numbered), position, "", word, can_change=False)


def _label(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _values(words: Sequence[str]) -> dict[str, str]:
    """Return arguments by name. A name without a value is "true"; `--no-x` is x with "false"."""
    values: dict[str, list[str]] = {}
    for word in _read(words):
        values.setdefault(word.name, []).extend([] if word.text is None else [word.text])
    flags = {name: "false" if name.startswith("no_") else "true" for name, texts in values.items() if not texts}
    named = {name: " ".join(texts) for name, texts in values.items() if texts}
    return named | {name.removeprefix("no_"): value for name, value in flags.items()}


def _is_option(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not _NUMBER.match(word)

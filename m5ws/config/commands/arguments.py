"""Arguments of a script as named parameters, so that two commands can be compared by name.

`--key value`, `--key=value`, `--flag`, `--no-flag` and Hydra's `a.b=c` are parameters, and so are the keys of a JSON,
YAML or TOML file that the command names. Pure: derived from the command of a run, so runs of any age have them.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

from m5ws.config.commands import launchers
from m5ws.config.flatten import flatten, plain

ReadFile = Callable[[str], bytes | None]
"""Returns a file of the run's code by its path, None if there is none."""

_NUMBER = re.compile(r"[+-]?(\d|\.\d|inf|nan)")
_OVERRIDE = re.compile(r"(?:\+{0,2}|~)([A-Za-z_][\w./@-]*)(=.*)?", re.DOTALL)
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


def names_file(word: str) -> bool:
    """Return True for the name of a JSON, YAML or TOML file."""
    return word.lower().endswith(_FILES)


def parse(command: Sequence[str], read: ReadFile) -> Arguments:
    """Return the arguments of a command, with the keys of the files that they name."""
    script, words = split(command)
    values = _values(words)
    numbered = [name for name, value in values.items() if name.isdigit() and names_file(value)]
    files: dict[str, NamedFile] = {}
    for name, value in values.items():
        content = read(value) if names_file(value) else None
        keys = flatten(value, content) if content is not None else None
        if keys is not None:
            prefix = "" if numbered == [name] else f"{name}."
            files[name] = NamedFile(path=value, prefix=prefix, keys={key: plain(text) for key, text in keys.items()})
    return Arguments(script=script, values=values, files=files)


def values(words: Sequence[str]) -> Iterator[str]:
    """Yield the arguments, and the values of those like `--key=value`."""
    for argument in words:
        key, _, value = argument.partition("=")
        if value:
            yield value
        elif not key.startswith("-"):
            yield key


def value_of(command: Sequence[str], name: str) -> str | None:
    """Return the value of a named argument; None if the command does not have it."""
    return _values(split(command)[1]).get(_label(name))


def replace(command: Sequence[str], name: str, value: str) -> tuple[str, ...] | None:
    """Return a command with another value of a named argument.

    None if the command does not have the argument once and with one value.
    """
    script, words = split(command)
    before = _values(words).get(_label(name))
    places = [
        (position, f"{label}={value}" if equals else value)
        for position, label, equals, text in _named_words(words)
        if _label(label.lstrip("-+")) == _label(name) and text == before
    ]
    if len(places) != 1:
        return None
    position, word = places[0]
    return (*script, *words[:position], word, *words[position + 1 :])


def _named_words(words: Sequence[str]) -> Iterator[tuple[int, str, str, str]]:
    """Yield the words that are values of named arguments: position, name, `=` if both are one word, value."""
    ended = words.index("--") if "--" in words else len(words)
    for position, word in enumerate(words[:ended]):
        label, equals, text = word.partition("=")
        if equals:
            yield position, label, equals, text
        elif position and _is_option(words[position - 1]) and "=" not in words[position - 1]:
            yield position, words[position - 1], "", word


def _label(name: str) -> str:
    return name.replace("-", "_")


def _values(words: Sequence[str]) -> dict[str, str]:
    """Return arguments by name. A name without a value is "true"; `--no-x` is x with "false"."""
    values: dict[str, list[str]] = {}
    negated: set[str] = set()
    option: str | None = None
    has_value, numbered = False, 0
    for position, word in enumerate(words):
        if word == "--":
            for number, rest in enumerate(words[position + 1 :], numbered + 1):
                values[str(number)] = [rest]
            break
        override = _OVERRIDE.fullmatch(word)
        is_override = override is not None and (override[2] is not None or word.startswith("~"))
        if _is_option(word):
            label, equals, value = word.partition("=")
            option = label.lstrip("-").replace("-", "_")
            if label.startswith("--no-") and not equals:
                negated.add(option)
            values.setdefault(option, []).extend([value] if equals else [])
            option, has_value = None if equals else option, False
        elif override is not None and is_override and (option is None or has_value):
            values.setdefault(override[1], []).append(override[2][1:] if override[2] is not None else _DELETED)
            option = None
        elif option is not None:
            values[option].append(word)
            has_value = True
        else:
            numbered += 1
            values[str(numbered)] = [word]
    return dict(_named(name, texts, is_negated=name in negated) for name, texts in values.items())


def _named(name: str, texts: Sequence[str], *, is_negated: bool) -> tuple[str, str]:
    if texts:
        return name, " ".join(texts)
    return (name.removeprefix("no_"), "false") if is_negated else (name, "true")


def _is_option(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not _NUMBER.match(word)

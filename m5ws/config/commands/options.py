"""Options of a launcher, read up to the script. The script and its arguments are returned unchanged."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from m5ws.errors import UsageError

Kind = Callable[[str], object]


class Option(msgspec.Struct, frozen=True):
    """One option of a launcher. `kind` reads its value; None for a flag.

    `ignored`: it cannot change the training. `refused`: the remedy if it cannot be taken over.
    """

    kind: Kind | None = None
    ignored: bool = False
    refused: str | None = None


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the given options by name (flags are True), the ignored options as given, and the rest."""

    values: dict[str, object]
    ignored: tuple[str, ...]
    rest: tuple[str, ...]


def table(
    *,
    flags: Sequence[str] = (),
    values: Mapping[str, Kind] | None = None,
    ignored_flags: Sequence[str] = (),
    ignored_values: Sequence[str] = (),
    refused_flags: Mapping[str, str] | None = None,
    refused_values: Mapping[str, str] | None = None,
) -> dict[str, Option]:
    """Return the options of a launcher by name, without dashes and with `_` for `-`."""
    return {
        **{name: Option() for name in flags},
        **{name: Option(kind) for name, kind in (values or {}).items()},
        **{name: Option(ignored=True) for name in ignored_flags},
        **{name: Option(str, ignored=True) for name in ignored_values},
        **{name: Option(refused=remedy) for name, remedy in (refused_flags or {}).items()},
        **{name: Option(str, refused=remedy) for name, remedy in (refused_values or {}).items()},
    }


def parse(launcher: str, words: Sequence[str], known: Mapping[str, Option], short: Mapping[str, str]) -> Parsed:
    """Return the options before the first other word, which is the script. Of a repeated option, the last counts.

    `short` maps names with one dash to long ones. Raises UsageError for an unknown or refused option, a bad value, and
    without a script.
    """
    values: dict[str, object] = {}
    ignored: list[str] = []
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] not in ("-", "--"):
        label, equals, text = _split(words[position], short)
        name = _name(label, short)
        option = known.get(name)
        if option is None:
            raise refusal(launcher, label, "`m5ws run` does not know the option: leave it out.")
        if option.refused is not None:
            raise refusal(launcher, label, option.refused)
        position += 1
        if option.kind is None:
            if equals:
                raise UsageError(f"{launcher}: {label} takes no value", hint=f"Give {label} as a word of its own.")
            values[name] = True
        else:
            if not equals:
                text, position = _next(launcher, label, words, position), position + 1
            values[name] = _value(launcher, label, text, option.kind)
        if option.ignored:
            values.pop(name)
            ignored.append(label)
    rest = tuple(words[position:])
    rest = rest[1:] if rest[:1] == ("--",) else rest
    if not rest:
        raise UsageError(f"{launcher}: no script to run", hint="Give the script after the launcher's options.")
    return Parsed(values=values, ignored=tuple(ignored), rest=rest)


def refusal(launcher: str, label: str, remedy: str) -> UsageError:
    """Return the error for an option that cannot be taken over."""
    return UsageError(f"{launcher}: {label} cannot be taken over", hint=remedy)


def _split(word: str, short: Mapping[str, str]) -> tuple[str, str, str]:
    """Return an option's label, "=" if a value is attached, and the value. As in argparse, `-n2` is `-n=2`."""
    label, equals, text = word.partition("=")
    if not label.startswith("--") and label[1:] not in short and label[1:2] in short:
        return word[:2], "=", word[2:]
    return label, equals, text


def _name(label: str, short: Mapping[str, str]) -> str:
    if label.startswith("--"):
        return label[2:].replace("-", "_")
    return short.get(label[1:], label)


def _next(launcher: str, label: str, words: Sequence[str], position: int) -> str:
    if position == len(words):
        raise UsageError(f"{launcher}: {label} needs a value", hint=f"Give the value after {label}.")
    return words[position]


def _value(launcher: str, label: str, text: str, kind: Kind) -> object:
    try:
        return kind(text)
    except ValueError as error:
        hint = "Give a whole number." if kind is int else "The launcher's `--help` lists the values."
        raise UsageError(f"{launcher}: {label} has no valid value: {text!r}", hint=hint) from error

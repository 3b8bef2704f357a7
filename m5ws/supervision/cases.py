"""Anonymised cases: the ends of all logs of a failed attempt, with the class that a person gave the failure.

A case is made to leave the machine. So secrets are masked, and names of people, machines and files are replaced.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from m5ws import secret_scan
from m5ws.version import __version__

UNKNOWN = "unknown"
_NEVER = frozenset(("", "root", "localhost"))
"""Names that identify nobody, and are frequent words of logs."""
_PATH = re.compile(r"(?:~|/(?:home|Users)/[^/\s'\":,;()<>]+|/root)/([^\s'\":,;()<>]+)")
_PREFIX = re.compile(r"/[^\s'\":,;()<>]*(?=/lib/python3|/site-packages/)")
_ADDRESS = re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0)\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")
_ADDRESS_6 = re.compile(r"(?<![\w:.])(?=(?:[\da-fA-F]*:){3})[\da-fA-F]{1,4}(?:::?[\da-fA-F]{1,4}){2,7}(?![\w:])")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case of a corpus: `expected` is the class that a person gave, and `found` the class by the rules of `version`.

    `logs` has the last lines of each log. `ended_s` has the times of recorded failures by rank, after the first.
    """

    version: str
    expected: str
    found: str
    logs: dict[str, tuple[str, ...]]
    ended_s: dict[str, float]


def make(
    logs: Mapping[str, Sequence[str]],
    ended_s: Mapping[str, float],
    expected: str,
    found: str,
    *,
    run: str,
    root: Path,
    users: Iterable[str],
    hosts: Iterable[str],
) -> Case:
    """Return a case without the names of its run, users and hosts, of folders below a home, and of addresses.

    `root` is the folder of the workspace, whose path is replaced too, as are paths of Python environments.

    The same name has the same placeholder in all logs.
    """
    replace = _replacement(run, root, users, hosts)
    first_s = min(ended_s.values(), default=0.0)
    return Case(
        version=__version__,
        expected=expected,
        found=found,
        # Masked as a whole, because a private key has many lines.
        logs={
            name: tuple(replace(secret_scan.masked("\n".join(lines))).split("\n")) if lines else ()
            for name, lines in logs.items()
        },
        ended_s={rank: round(time_s - first_s, 3) for rank, time_s in ended_s.items()},
    )


def _replacement(run: str, root: Path, users: Iterable[str], hosts: Iterable[str]) -> Callable[[str], str]:
    """Return a function that replaces names in a text by placeholders."""
    machines = sorted({host.partition(".")[0] for host in hosts} - _NEVER)
    names = dict.fromkeys(set(users) - _NEVER, "user") | {run: "run"}
    names |= {host: f"host-{number}" for number, host in enumerate(machines, 1)}
    ordered = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    # A host may be followed by its domain.
    words = re.compile(rf"(?<![\w-])({ordered})(?:\.[\w.-]+)?(?![\w-])")
    seen: dict[str, dict[str, str]] = {}

    def numbered(kind: str, text: str, form: str) -> str:
        known = seen.setdefault(kind, {})
        return form.format(known.setdefault(text, str(len(known) + 1)))

    def path(match: re.Match[str]) -> str:
        name = match[1].rpartition("/")[2]
        suffix = name[name.rfind(".") :] if "." in name else ""
        return numbered("path", match[0], "/home/user/path-{}") + suffix

    def replace(text: str) -> str:
        text = _PATH.sub(path, _PREFIX.sub("/env", text.replace(str(root), "/workspace")))
        text = _MAIL.sub("user@example.com", text)
        text = _ADDRESS.sub(lambda match: numbered("address", match[0], "10.0.0.{}"), text)
        text = _ADDRESS_6.sub(lambda match: numbered("address", match[0], "fd00::{}"), text)
        return words.sub(lambda match: names[match[1]], text)

    return replace

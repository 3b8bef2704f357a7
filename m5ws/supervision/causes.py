"""The cause of a failed attempt: its class, and the rank that it began on, from the logs of ranks.

The rules are data, `causes.toml`. A rule of level "cascade" describes the effect of a failure on other ranks, such as
a collective that times out, and never wins against a rule of another level. A rule of level "script" describes any
exception, and never wins against a rule of level "root". No rule matches an unknown cause.

A fault is survived, and no cause, if the log of its rank goes on as before: each form of line that occurs twice or more
shortly before the fault, such as the line of a step, occurs after the fault too.
"""

import logging
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from m5ws import secret_scan
from m5ws.config import cause_patterns
from m5ws.logs import log_lines
from m5ws.records.cause import Cause, Level, Rule

_LEVELS: tuple[Level, ...] = ("cascade", "script", "root")
"""The levels of failures by their weight: a later level wins."""
_ON_ONE_LINE: tuple[Level, ...] = ("root", "cascade", "script")
"""The order of rules for one line. A collective that fails raises an exception too, which is not the script's."""
END_LINES = 400
"""A failure is at the end of a log, before tracebacks and stacks. Training survived the faults of earlier lines."""
_LINE_CHARACTERS = 2_000
"""The part of a line that is searched and shown."""
_EVIDENCE_LINES = 3
_SEARCH_S = 5.0
"""Limit of one search, in seconds of a processor. A pattern can take exponential time."""
_log = logging.getLogger(__name__)
_WARNING = re.compile(r"(?:\[rank\d+\]:)?\s*\[?[WID]\d{4} |.{0,200}?(?:\b(?:WARNING|INFO|DEBUG)\b|: \w*Warning: )")
"""A line that its writer calls a warning or less is no failure: of glog and torch, of `logging`, of `warnings`."""
_PREFIX = re.compile(r"(?: *\d+: |\[default\d+\]:|\[[\d,]+\]<\w+>:|\(\w+ pid=[^)]*\) |\d{4}-\S+Z )?(?:\[rank\d+\]: ?)*")
_FRAME = re.compile(r'\s*File ".*", line \d+')
"""Launchers put a prefix before each line. Source lines follow a frame or a warning, and may contain any message."""
_BEFORE_LINES = 50
"""The lines before a fault that show the forms of lines. Lines of the start of a run do not come again."""
_VARIABLE = re.compile(r"(?<!\w)/\S+|[\u2588-\u258f]+ ?|-?\b\w*\d[\w.,+-]*")
"""The parts of a line that differ between lines of one form: paths, bars, and words with a digit."""


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a log, and the class of the rule that matches it. `line` counts from 0."""

    kind: str
    level: Level
    line: int


@cache
def builtin() -> Mapping[str, Rule]:
    """Return the rules of m5ws by class."""
    text = resources.files("m5ws.supervision").joinpath("causes.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, Rule])


def with_own(own: Mapping[str, Rule]) -> Mapping[str, Rule]:
    """Return the rules of a workspace before the rules of m5ws, which they replace by class.

    Of two rules of a level that match a line, the earlier rule counts.
    """
    return {**own, **{kind: rule for kind, rule in builtin().items() if kind not in own}}


def shared(rule: Rule) -> dict[str, Any]:
    """Return the fields of a rule that a cause has too."""
    return {name: value for name, value in msgspec.structs.asdict(rule).items() if name != "patterns"}


class Classifier:
    """Finds causes by rules. A rule whose search takes too long is left out, with a warning that names it.

    Raises ConfigError for a pattern that is no regular expression.
    """

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._rules = rules
        ordered = sorted(rules.items(), key=lambda pair: _ON_ONE_LINE.index(pair[1].level))
        self._patterns = [
            (kind, cause_patterns.compile_pattern(each)) for kind, rule in ordered for each in rule.patterns
        ]
        self._order = {kind: number for number, kind in enumerate(rules)}
        self._slow = set[str]()

    def match(self, lines: Sequence[str], *, is_shared: bool = False) -> Match | None:
        """Return the first match of the highest level at the end of a log; None if no rule matches a fatal fault.

        The lines of a log that ranks share, as in a launcher's, do not show that the failed rank went on.
        """
        texts = _unquoted(lines)
        # The whole text at once is ten times as fast as its lines, and few patterns match anywhere in a log.
        text = "\n".join(texts.values())
        patterns = [(kind, pattern) for kind, pattern in self._patterns if self._search(kind, pattern, text)]
        kinds = dict[int, str]()
        for number, text in texts.items() if patterns else ():
            kind = next((kind for kind, pattern in patterns if self._search(kind, pattern, text)), None)
            if kind is not None:
                kinds[number] = kind
        fatal = kinds if is_shared else _fatal(lines, kinds)
        matches = [Match(kind=kinds[number], level=self._rules[kinds[number]].level, line=number) for number in fatal]
        return max(matches, key=lambda match: _LEVELS.index(match.level), default=None)

    def find(self, logs: Mapping[str, Sequence[str]], ended_s: Mapping[str, float]) -> Cause | None:
        """Return the cause of a failure; None if no rule matches.

        `logs` has the lines of ranks and of launchers by name, and `ended_s` the times at which ranks recorded a
        failure, in seconds. A launcher repeats the errors of ranks, so it comes last among logs of one level. Of
        effects without times, the earlier rule counts.
        """
        all_matches = {name: self.match(lines, is_shared=not name.isdigit()) for name, lines in logs.items()}
        matches = {name: match for name, match in all_matches.items() if match is not None}
        if not matches:
            return None

        def place(name: str) -> tuple[int, bool, float, int, str]:
            level, kind = matches[name].level, matches[name].kind
            order = self._order[kind] if level == "cascade" else 0
            time_s = ended_s.get(name, float("inf"))
            return -_LEVELS.index(level), not name.isdigit(), time_s, order, name.zfill(8)

        rank = min(matches, key=place)
        match, rule = matches[rank], self._rules[matches[rank].kind]
        before, until = max(0, match.line - _EVIDENCE_LINES), match.line + _EVIDENCE_LINES + 1
        # Masked with all lines before, because a private key has many lines.
        shown = secret_scan.masked("\n".join(map(_searched, logs[rank][:until]))).split("\n")
        return Cause(
            kind=match.kind,
            **shared(rule),
            rank=rank,
            line=match.line + 1,
            evidence=tuple(shown[before - min(until, len(logs[rank])) :]),
            others={name: other.kind for name, other in matches.items() if name != rank},
        )

    def _search(self, kind: str, pattern: "cause_patterns.Pattern", text: str) -> bool:
        """Return True if a pattern of a class matches in a text."""
        try:
            return kind not in self._slow and pattern.search(text, timeout=_SEARCH_S) is not None
        except TimeoutError:
            self._slow.add(kind)
            _log.warning("causes.%s is left out, because a pattern such as (a+)+ takes too long", kind)
            return False


def _unquoted(lines: Sequence[str]) -> dict[int, str]:
    """Return the lines at the end of a log that are searched, by their numbers: lines that quote no other text."""
    texts, is_quoted = {}, False
    for number in range(max(0, len(lines) - END_LINES), len(lines)):
        text = _plain(lines[number])
        is_quoted = bool(_FRAME.match(text) or _WARNING.match(text) or (is_quoted and text.startswith("  ")))
        if not is_quoted:
            texts[number] = text
    return texts


def _fatal(lines: Sequence[str], faults: Collection[int]) -> list[int]:
    """Return the numbers of the faults that a log did not survive, in order."""
    if not faults or min(faults) == len(lines) - 1:
        return sorted(faults)
    forms, is_source = dict[int, str | None](), False
    for number in range(max(0, min(faults) - _BEFORE_LINES), len(lines)):
        text = _plain(lines[number])
        is_source = bool(_FRAME.match(text) or (is_source and text.startswith("  ")))
        forms[number] = None if is_source or number in faults else _form(text)
    return [number for number in sorted(faults) if not _goes_on(forms, number)]


def _goes_on(forms: Mapping[int, str | None], fault: int) -> bool:
    """Return True if a log goes on after a fault as before."""
    before = Counter(forms.get(number) for number in range(fault - _BEFORE_LINES, fault))
    repeated = {form for form, count in before.items() if form is not None and count > 1}
    return bool(repeated) and repeated <= {form for number, form in forms.items() if number > fault}


def _form(text: str) -> str | None:
    """Return a line without its variable parts; None without such parts, or with an address, as in a stack."""
    text = " ".join(text.split())
    form = _VARIABLE.sub("#", text)
    return None if form == text or "0x" in text else form


def _plain(line: str) -> str:
    """Return the part of a line that is searched, without the prefix of a launcher."""
    return _PREFIX.sub("", _searched(line), count=1)


def _searched(line: str) -> str:
    """Return the part of a line that is searched."""
    return log_lines.last_state(line)[:_LINE_CHARACTERS]

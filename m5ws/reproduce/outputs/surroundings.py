"""The time and place of a run, and texts without them.

A date, a time of day or a count of seconds belongs to a clock only if it lies within the run's own time. Any other is
an ordinary value.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property

import msgspec

from m5ws.errors import NotFound
from m5ws.records import exact
from m5ws.records.checkpoint import Content
from m5ws.records.ledger import AttemptEnded, AttemptStarted, Observation, Step
from m5ws.repository import outputs
from m5ws.repository.files import trees
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.ledger import LAUNCHER
from m5ws.repository.repository import Repository
from m5ws.reproduce.outputs import ignored

_SLACK_S = 60.0
"""Upper bound of the difference between clocks of two machines, or between an attempt's end and its last file."""
_ZONE_S = 14 * 3600.0
"""Largest offset of local time from UTC."""
_QUARTER_S = 900.0
"""Time zones are whole quarters of an hour apart."""
_DAYS = 400
_DAY_FORMATS = (
    *(f"%Y{mark}%m{mark}%d" for mark in ("-", "", "/", "_", ".")),
    *(f"%d{mark}%m{mark}%Y" for mark in ("/", ".", "-")),
    *(f"%m{mark}%d{mark}%Y" for mark in ("/", "-")),
    *("%b%d", "%b %d", "%b %e", "%d %b %Y", "%e %b %Y", "%B %d, %Y", "%d %B %Y"),
)
_SHORT_FORMATS = ("%m%d", "%y%m%d", "%m-%d", "%m/%d", "%m/%d/%y")
"""Forms of a day that any number may look like. They count as a day only before a time of day."""
_DIGITS = r"[0-2]\d[0-5]\d[0-5]\d"
_MARKED = "|".join(
    [*(rf"[0-2]\d{mark}[0-5]\d{mark}[0-5]\d" for mark in ("-", ":", "_", r"\.", "h")), r"[0-2]\d[-:h][0-5]\d"]
)
_FRACTION = r"(?:\.\d{1,9}|,\d{3}(?![\d.,]))?"
"""Fraction of a second. After a comma, as in Python's logs, it has three digits: else it is the next cell of a row."""
_ZONE = r"(?: ?[AP]M)?(?: ?(?:Z|UTC|GMT|[-+]\d\d:?\d\d))?(?!\d)"
# Bare digits after a space or a comma may be a count.
_CLOCK = rf"(?:[T_/-]{{0,2}}{_DIGITS}|[T_/ .,-]{{0,3}}(?:{_MARKED})){_FRACTION}{_ZONE}"
_NEXT_CLOCK = rf"(?:[T_-]{_DIGITS}|[T_ -]{{1,2}}(?:{_MARKED})){_FRACTION}{_ZONE}"
_WEEKDAY = r"(?:\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? )?"
# As in logs and folder names: at the start of a text, or of a name in a path. Elsewhere it may be a duration.
_BARE_CLOCK = re.compile(r"(^\W{0,3}|[/_])([0-2]\d)([:-])([0-5]\d)\3([0-5]\d)" + _FRACTION + r"(?![\d:-])")
_EPOCH = re.compile(r"(?<!\d)(?<!\d\.)(\d{10})(?:(?:\d{3}|\d{6}|\d{9})|\.\d+)?(?!\.?\d)")
_SCALES = (1, 1e3, 1e6, 1e9)
_MLFLOW = re.compile(r"(?<!\w)(?:mlruns|mlartifacts)/[^\s'\",:;]*")
_MLFLOW_ID = re.compile(r"(?<=/)(?:m-)?(?:[0-9a-f]{32}|\d{15,20})(?=/|$)")
_WANDB = re.compile(r"(?<!\w)(wandb/(?:offline-)?run-\d{8}_\d{6}-)[\w.-]+")


class Surroundings(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A run's id, its hosts, its first and last moment in seconds since the epoch, and the number of its attempts.

    `earlier` has the paths and digests of the files that its earlier attempts left. `begins_anew`: its last attempt
    took the first step. `numbered` has the numbered folders (`numbered_folders`), by the path up to the number, and for
    each number the text that replaces it.
    """

    run: str
    hosts: tuple[str, ...] = ()
    began_s: float = 0.0
    ended_s: float = 0.0
    attempts: int = 1
    earlier: frozenset[tuple[str, str]] = frozenset()
    begins_anew: bool = False
    numbered: Mapping[str, Mapping[str, str]] = {}

    def placeless(self, text: str | None) -> str | None:
        """Return a text without the run's folder and id."""
        return None if text is None else ignored.without_place(text, self.run)

    def plain(self, text: str) -> str:
        """Return a text without the run's folder, its ids, its hosts, and the moments of its own time."""
        return self._plain(self._numbers, text)

    def plain_key(self, key: str) -> str:
        """Return the key of a value as `plain` returns a text, but a folder may begin after a dot."""
        return self._plain(self._numbers_in_keys, key)

    def _plain(self, numbers: "re.Pattern[str]", text: str) -> str:
        text = without_random_ids(ignored.without_place(text, self.run))
        if self.numbered:
            text = numbers.sub(lambda match: match[1] + self.numbered[match[1]].get(match[2], match[2]), text)
        if self.began_s:
            text = self._dated.sub("TIME", text)
            text = _BARE_CLOCK.sub(lambda match: f"{match[1]}TIME" if self._is_clock(match) else match[0], text)
            text = _EPOCH.sub(lambda match: "TIME" if self._is_moment(float(match[1])) else match[0], text)
        return self._hosts.sub("HOST", text) if self.hosts else text

    def numbered_folder(self, name: str) -> tuple[str, str] | None:
        """Return the numbered folder in which a file is: its path up to the number, and the number."""
        match = self._numbers.match(name) if self.numbered else None
        is_inside = match is not None and name[match.end() :].startswith("/")
        return (match[1], match[2]) if match and is_inside and match[2] in self.numbered[match[1]] else None

    @cached_property
    def _numbers(self) -> "re.Pattern[str]":
        return self._numbered_after(r"[\w./-]")

    @cached_property
    def _numbers_in_keys(self) -> "re.Pattern[str]":
        return self._numbered_after(r"[\w/-]")

    def _numbered_after(self, other: str) -> "re.Pattern[str]":
        """Return a pattern of the run's own numbered folders, and not of others whose paths end like these."""
        either = "|".join(map(re.escape, self.numbered))
        begin = rf"(?<!{other})|(?<=(?<!{other})\./)|(?<=RUN/)"
        return re.compile(rf"(?:{begin})({either})(\d+)(?![\w-]|\.\d)")

    def plain_value(self, text: str | None) -> str | None:
        """Return the exact text of a value without the parts that `plain` removes. Numbers may be moments too."""
        if text is None:
            return None
        if not text.startswith("0x1."):
            return self.plain(text)
        try:
            seconds = exact.decode(text)
        except (ValueError, OverflowError):
            return self.plain(text)
        return "TIME" if any(self._is_moment(seconds / scale) for scale in _SCALES) else text

    @cached_property
    def _hosts(self) -> "re.Pattern[str]":
        names = {*self.hosts, *(host.partition(".")[0] for host in self.hosts)}
        either = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        return re.compile(rf"(?<![A-Za-z0-9])(?:{either})(?![A-Za-z0-9])")

    @cached_property
    def _dated(self) -> "re.Pattern[str]":
        days, short = (self._days(forms) for forms in (_DAY_FORMATS, _SHORT_FORMATS))
        return re.compile(
            rf"{_WEEKDAY}(?<![0-9])(?:(?:{days})(?:{_CLOCK})?(?: 20\d\d)?"
            rf"|(?<![A-Za-z])(?<![0-9][-./])(?:{short}){_NEXT_CLOCK})(?![0-9])"
        )

    def _days(self, forms: Sequence[str]) -> str:
        """Return a pattern of all days of the run, in any time zone, in these forms."""
        day = datetime.fromtimestamp(self.began_s - _ZONE_S, UTC).date()
        last = datetime.fromtimestamp(self.ended_s + _ZONE_S, UTC).date()
        count = min((last - day).days + 1, _DAYS)
        days = {(day + timedelta(days=number)).strftime(form) for number in range(count) for form in forms}
        return "|".join(re.escape(text) for text in sorted(days, key=len, reverse=True))

    def _is_moment(self, seconds: float) -> bool:
        return bool(self.began_s) and self.began_s - _SLACK_S <= seconds <= self.ended_s + _SLACK_S

    def _is_clock(self, match: "re.Match[str]") -> bool:
        of_day = 3600 * int(match[2]) + 60 * int(match[4]) + int(match[5])
        begin = self.began_s - _SLACK_S
        return (of_day - begin) % _QUARTER_S <= self.ended_s + _SLACK_S - begin


def without_random_ids(text: str) -> str:
    """Return a text with the ids that MLflow and Weights & Biases draw for folders of runs replaced by `ID`."""
    text = _MLFLOW.sub(lambda match: _MLFLOW_ID.sub("ID", match[0]), text)
    return _WANDB.sub(r"\1ID", text)


def load(repo: Repository, run: str) -> Surroundings:
    """Return the time and place of a run, over all its attempts. Raises CorruptObject."""
    hosts = dict[str, None]()
    moments = list[float]()
    attempts = ledger.attempts(repo, run)
    for attempt in attempts:
        ended = False
        for event in ledger.events(repo, run, attempt, LAUNCHER):
            moments.append(event.time_s)
            ended = ended or isinstance(event, AttemptEnded)
            if isinstance(event, AttemptStarted):
                hosts[event.host] = None
        for rank in () if ended else ledger.ranks(repo, run, attempt):
            moments += [event.time_s for event in ledger.events(repo, run, attempt, rank)]
    moments = [moment for moment in moments if moment]
    return Surroundings(
        run=run,
        hosts=tuple(hosts),
        began_s=min(moments, default=0.0),
        ended_s=max(moments, default=0.0),
        attempts=len(attempts),
        earlier=frozenset(_left_before(repo, run, max(attempts, default=0))),
        begins_anew=len(attempts) > 1 and _takes_first_step(repo, run, max(attempts)),
    )


def _left_before(repo: Repository, run: str, last: int) -> Iterator[tuple[str, str]]:
    """Yield the paths and digests of the output files of the attempts before `last`, for `Surroundings.earlier`."""
    for label in outputs.names(repo, run) if last > 1 else ():
        if outputs.attempt_of(label) >= last:
            continue
        try:
            _, record = outputs.find(repo, run, label)
        except NotFound:
            continue  # Retired by a gc since the listing.
        # A file that a resume put back may be in no other copy that is left. Records of older builds have no `resume`.
        for digest in filter(None, {record.content, getattr(record, "resume", None)}):
            content = repo.objects.get_record(digest, Content)
            tree = trees.located(repo.objects, repo.locations, content.tree, content.packing) if content.tree else None
            for entry in tree.entries if tree is not None else ():
                yield entry.name, entry.digest


def _takes_first_step(repo: Repository, run: str, attempt: int) -> bool:
    """Return True if an attempt recorded the first step, and its number was no guess."""
    ranks = ledger.ranks(repo, run, attempt)
    for event in ledger.events(repo, run, attempt, min(ranks)) if ranks else ():
        if isinstance(event, Step) or (isinstance(event, Observation) and event.unplaced):
            return isinstance(event, Step) and event.step == 1
    return False

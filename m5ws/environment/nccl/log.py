"""The log of NCCL in one process, as facts.

A fact has all values of the lines that were read, up to a limit. So the facts of a cut log are absent, or a part of the
facts of the whole log. A line that matches no pattern is ignored, and a line without an end is not read yet.
"""

import re
from collections.abc import Iterator

import blake3

_PREFIX = re.compile(r"(.*?)NCCL (?:INFO|WARN) +(.*)")
"""`HOST:PID:THREAD [DEVICE] NCCL INFO TEXT`, in some versions after a time. A warning has FILE:LINE before NCCL."""

_FACTS: tuple[tuple[str, str], ...] = (
    # NCCL, src/init.cc, showVersion: since 2.3 a line of rank 0, in a file with the prefix of other lines.
    ("nccl.version", r"NCCL version (\d\S*)"),
    # aws-ofi-nccl, src/nccl_ofi_net.c: "Using" until 1.6, then "Initializing"; libfabric's version since 1.8.
    ("nccl.plugin", r"NET/OFI (?:Using|Initializing) (aws-ofi-nccl \S+)"),
    ("nccl.libfabric", r"NET/OFI Using Libfabric version (\S+)"),
    # The same file: since 1.6 with the number of devices, since 1.14 "provider" and the name of the fabric.
    ("nccl.provider", r"NET/OFI Selected [Pp]rovider is ([^\s,]+).*"),
    # NCCL, src/init.cc, since 2.6.
    ("nccl.network", r"Using network (\S.*)"),
    # NCCL, src/transport/net.cc: "Ring" until 2.6, then "Channel"; with the connection's index since 2.12.
    ("nccl.network", r"(?:Ring|Channel) \d+.* via NET/([^/]+)/.*"),
    # NCCL, src/init.cc or src/graph/paths.cc, since 2.7; src/graph/rings.cc, since 2.5, of rank 0.
    ("nccl.channels", r"(\d+) coll channels,.*"),
    ("nccl.channels", r"Channel \d+/0*(\d+) :(?: +\d+)+"),
    # NCCL, src/graph/tuning.cc, since 2.7: the choice that the user or the plugin leaves to NCCL.
    ("nccl.limits", r"(NCCL_(?:ALGO|PROTO) set by environment to .+)"),
    # NCCL, src/init.cc, since 2.4: the trees of this rank.
    ("nccl.trees", r"Trees( \[\d+\] .+)"),
)
_LINE = 4096
"""Longer lines are no lines of NCCL, and matching a pattern to them takes long."""
_MOST_VALUES = 1000
_FACT_PATTERNS = tuple((name, re.compile(pattern, re.ASCII)) for name, pattern in _FACTS)
_SENDS = re.compile(r"(?:Ring|Channel) \d+.* via NET/([^/]+)/(.*)")
_RING = re.compile(r"Channel (\d{1,9})/(\d{1,9}) :((?: +\d+)+)", re.ASCII)
_CHOICE = re.compile(r"(?:\w+: )?\d+ Bytes -> Algo (\w{1,64}) proto (\w{1,64})(?: .*)?", re.ASCII)
"""NCCL, src/enqueue.cc, subsystem TUNING, of rank 0: a line for each collective, by number from 2.20 to 2.23, then by
name."""
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")

NO_PLUGIN = re.compile(r"NET/Plugin ?: ?.*(?:No plugin found|Could not find:.*libnccl-net|cannot open shared object).*")
"""NCCL, src/net.cc: "No plugin found" until 2.21, then "Could not find"."""
NO_PROVIDER = re.compile(r".*NET/OFI.*(?:optimal provider|fi_getinfo\(\) call failed|No eligible providers).*")
"""aws-ofi-nccl, src/nccl_ofi_net.c (until 1.13) and src/nccl_ofi_rdma.c: libfabric offers no network."""


class NcclLog:
    """Reads a log as it grows. `sends` has the networks through which data goes, by their names in the log.

    `no_plugin` and `no_provider`: the log has a line about a missing plugin, or about a missing provider.
    """

    def __init__(self) -> None:
        self._values: dict[str, set[str]] = {}
        self._rest = ""
        self._rings: dict[str, list[str]] = {}
        self.sends: set[str] = set()
        self.no_plugin = self.no_provider = False

    def feed(self, text: str) -> None:
        """Read the next part of the log, which may end inside a line."""
        *lines, self._rest = (self._rest + text).split("\n")
        self._rest = self._rest[: _LINE + 1]
        for line in (line for line in lines if len(line) <= _LINE):
            prefixed = _PREFIX.fullmatch(line.strip())
            place, message = prefixed.groups() if prefixed else ("", line.strip())
            self._read(place, message)

    @property
    def facts(self) -> dict[str, str]:
        """The values of each fact, sorted and separated by commas; no fact without a value."""
        return {name: ", ".join(sorted(values)) for name, values in sorted(self._values.items())}

    def _read(self, place: str, message: str) -> None:
        for name, pattern in _FACT_PATTERNS:
            if match := pattern.fullmatch(message):
                self._add(name, _digest([match[1]]) if name == "nccl.trees" else match[1])
        for name, value in _choice(message):
            self._add(name, value)
        if match := _SENDS.fullmatch(message):
            self.sends.add(match[1])
            self._add("nccl.gdr", "on" if "GDRDMA" in match[2] else "off")
        if match := _RING.fullmatch(message):
            self._add_ring(f"{place} {match[2]}", int(match[1]), int(match[2]), match[3])
        self.no_plugin = self.no_plugin or NO_PLUGIN.fullmatch(message) is not None
        self.no_provider = self.no_provider or NO_PROVIDER.fullmatch(message) is not None

    def _add(self, name: str, value: str) -> None:
        values = self._values.setdefault(name, set())
        if len(values) < _MOST_VALUES:
            values.add(value)

    def _add_ring(self, communicator: str, number: int, count: int, ranks: str) -> None:
        """Add a ring. The digest of a communicator's rings is a fact if none of their lines is missing."""
        rings = self._rings.setdefault(communicator, [])
        if number != len(rings):
            rings.clear()
        if number == len(rings):
            rings.append(" ".join(ranks.split()))
        if len(rings) == count:
            self._add("nccl.rings", _digest(rings))
            rings.clear()


def _choice(message: str) -> Iterator[tuple[str, str]]:
    """Yield the algorithm and the protocol of a collective."""
    if match := _CHOICE.fullmatch(message):
        for fact, value, names in zip(
            ("nccl.algorithms", "nccl.protocols"), match.groups(), (_ALGORITHMS, _PROTOCOLS), strict=True
        ):
            is_known = value.isdigit() and int(value) < len(names)
            yield fact, names[int(value)] if is_known else value


def _digest(lines: list[str]) -> str:
    return blake3.blake3("\n".join(lines).encode()).hexdigest()[:16]

"""How an environment is made again: what is installed from where, or which container image. No I/O here."""

import re

from m5ws.records.base import Digest, Record

# A version that PEP 440 writes in no other way: `===`, which compares text, then means exactly this one. `==1.0` would
# be met by 1.0+cpu too.
_NUMBER = r"(0|[1-9]\d*)"
_LOCAL = rf"({_NUMBER}|\d*[a-z][a-z0-9]*)"
_NORMAL = re.compile(
    rf"{_NUMBER}(\.{_NUMBER})*((a|b|rc){_NUMBER})?(\.post{_NUMBER})?(\.dev{_NUMBER})?(\+{_LOCAL}(\.{_LOCAL})*)?"
)


class Requirement(Record, frozen=True, kw_only=True):
    """One distribution, exactly.

    From an index by its version; or from `url`; or from `path`, a file or folder of the snapshot's code. `hashes` are
    the SHA-256 that what is installed may have, if any are known.
    """

    name: str
    version: str
    url: str = ""
    path: str = ""
    hashes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The requirement as a line of pip's; one of a `path` has none."""
        assert not self.path
        exact = "===" if _NORMAL.fullmatch(self.version) else "=="
        what = f"{self.name} @ {self.url}" if self.url else f"{self.name}{exact}{self.version}"
        return " ".join((what, *(f"--hash=sha256:{digest}" for digest in self.hashes)))


class Recipe(Record, frozen=True, kw_only=True):
    """An environment that was recorded, as it can be made again.

    `python` is the version of the interpreter. `code` is the tree that paths of requirements are in, None where there
    are none. With an `image`, all is in the container image of that name and digest, and nothing is installed.
    """

    python: str
    requirements: tuple[Requirement, ...] = ()
    code: Digest | None = None
    image: str | None = None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(requirement.name for requirement in self.requirements)

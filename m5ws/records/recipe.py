"""Recipe of an environment: the distributions to install and their sources. No I/O here."""

import re

from m5ws.records.base import Digest, Record

# A version in PEP 440's normal form: `===`, which compares text, matches exactly this form. `==1.0` matches 1.0+cpu
# too.
_NUMBER = r"(0|[1-9]\d*)"
_LOCAL = rf"({_NUMBER}|\d*[a-z][a-z0-9]*)"
_NORMAL = re.compile(
    rf"{_NUMBER}(\.{_NUMBER})*((a|b|rc){_NUMBER})?(\.post{_NUMBER})?(\.dev{_NUMBER})?(\+{_LOCAL}(\.{_LOCAL})*)?"
)


class Requirement(Record, frozen=True, kw_only=True):
    """One distribution of an exact version.

    It comes from an index, from `url`, or from `path`, a file or folder of the snapshot's code, `editable` or copied.
    `hash` is the SHA-256 of the archive at `url`, if it is known.
    """

    name: str
    version: str
    url: str = ""
    path: str = ""
    editable: bool = False
    hash: str | None = None

    @property
    def line(self) -> str:
        """The requirement as a line for pip. A path is below the folder of the code."""
        if self.path:
            return f"--editable ./{self.path}" if self.editable else f"./{self.path}"
        exact = "===" if _NORMAL.fullmatch(self.version) else "=="
        if not self.url:
            return f"{self.name}{exact}{self.version}"
        mark = "&" if "#" in self.url else "#"
        return f"{self.name} @ {self.url}" + (f"{mark}sha256={self.hash}" if self.hash else "")


class Recipe(Record, frozen=True, kw_only=True):
    """The parts from which a recorded environment can be rebuilt.

    `python` is the version of the interpreter. `code` is the tree with the paths of requirements, None without paths.
    """

    python: str
    requirements: tuple[Requirement, ...] = ()
    code: Digest | None = None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(requirement.name for requirement in self.requirements)

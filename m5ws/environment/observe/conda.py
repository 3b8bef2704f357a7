"""Packages of a conda environment, by the record of each installed package in its folder `conda-meta`.

conda, mamba and pixi write these records. A package is named by its line of `conda list --explicit --sha256`: the URL,
which has name, version and build, and the hash of the archive.
https://github.com/conda/ceps/blob/main/cep-0023.md
"""

import re
import sys
from pathlib import Path

import msgspec

from m5ws import secret_scan

CONDA = "conda."
"""Prefix of facts with packages of conda that are no Python distributions."""

_METADATA = re.compile(r".*\.(dist|egg)-info")
_SECRET = re.compile(r"(?<=://)[^/\s]*@|/t/[^/]+(?=/)")  # Credentials, and the token of a private channel.


class _Package(msgspec.Struct):
    """The fields of a record that m5ws reads. A package that was installed from a file can lack the URL."""

    name: str
    fn: str
    url: str | None = None
    md5: str | None = None
    sha256: str | None = None
    files: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        if not self.url or self.url.startswith("<unknown>"):
            return f"# no URL for: {self.fn}"
        digest = f"sha256:{self.sha256}" if self.sha256 else self.md5
        return secret_scan.masked(_SECRET.sub("", self.url)) + (f"#{digest}" if digest else "")


def facts() -> dict[str, str | None]:
    """Return the line of each package of conda of which no Python distribution is installed."""
    # pip replaces distributions of conda, and leaves their records in place.
    return {
        f"{CONDA}{package.name}": package.line
        for package, distributions in _packages()
        if not any(folder.exists() for folder in distributions)
    }


def lines() -> dict[Path, str]:
    """Return the lines of packages by the folder of the metadata of each of their Python distributions."""
    return {folder: package.line for package, distributions in _packages() for folder in distributions}


def _packages() -> list[tuple[_Package, set[Path]]]:
    """Return the installed packages, with the folders of metadata. Of a damaged record, only the file's name counts."""
    packages, prefix = [], Path(sys.prefix)
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        try:
            package = msgspec.json.decode(path.read_bytes(), type=_Package)
        except (OSError, msgspec.MsgspecError):
            package = _Package(name=path.stem, fn=path.stem)
        matches = (_METADATA.match(file) for file in package.files if "-info" in file)
        packages.append((package, {prefix / match[0] for match in matches if match}))
    return packages

"""Wheels made here, so that real pip installs real distributions without a network.

A borrowed wheel has the name and version of a distribution installed for the tests, and a `.pth` file with the path of
its files. A virtual environment with torch then costs no more than an environment without torch.
"""

import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

_WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel(folder: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """Write a wheel of `files` by their paths in site-packages, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = re.sub(r"[-_.]+", "_", name)
    info = f"{plain}-{version}.dist-info"
    described = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": _WHEEL,
    }
    path = folder / f"{plain}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        record = []
        for inside, text in {**files, **described}.items():
            archive.writestr(inside, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record.append(f"{inside},sha256={digest},{len(text.encode())}\n")
        archive.writestr(f"{info}/RECORD", "".join(record) + f"{info}/RECORD,,\n")
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def borrowed(folder: Path, shelf: Path, *names: str) -> list[str]:
    """Write borrowed wheels of distributions and their requirements into `folder`; return `name==version` of each.

    `shelf` gets links to their files.
    """
    pinned = []
    for name in sorted(_closure(names)):
        distribution = metadata.distribution(name)
        own = shelf / name
        own.mkdir(parents=True)
        for top in {file.parts[0] for file in distribution.files or ()}:
            source = Path(str(distribution.locate_file(top)))
            if source.exists() and not top.endswith((".dist-info", ".egg-info")) and top not in ("..", "__pycache__"):
                (own / top).symlink_to(source)
        files = {f"{name}_borrowed.pth": f"{own}\n"}
        if points := distribution.read_text("entry_points.txt"):
            files[f"{name.replace('-', '_')}-{distribution.version}.dist-info/entry_points.txt"] = points
        wheel(folder, name, distribution.version, files)
        pinned.append(f"{name}=={distribution.version}")
    return pinned


def environment(place: Path, links: Path, *requirements: str) -> Path:
    """Make a virtual environment with `requirements` from the wheels in `links`, and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, capture_output=True)
    python = place / "bin" / "python"
    install(python, links, *requirements)
    return python


def only(links: Path) -> dict[str, str]:
    """Return this process's variables without Python's and pip's, so that pip uses the wheels in `links` alone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    return kept | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links), "PIP_CONFIG_FILE": os.devnull}


def install(python: Path, links: Path, *requirements: str) -> None:
    """Install with an environment's pip, from the wheels in `links` alone."""
    command = [str(python), "-I", "-m", "pip", "install", "--quiet", "--no-deps", *requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=only(links))
    assert done.returncode == 0, done.stderr


def _closure(names: tuple[str, ...]) -> set[str]:
    waiting, names_found = list(names), set[str]()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name not in names_found:
            names_found.add(name)
            waiting += _required(name)
    return names_found


def _required(name: str) -> Iterator[str]:
    for line in metadata.requires(name) or ():
        wanted, _, marker = line.partition(";")
        needed = re.match(r"[A-Za-z0-9][\w.-]*", wanted)
        assert needed is not None
        try:
            metadata.distribution(needed[0])
        except metadata.PackageNotFoundError:
            continue  # for another platform or version
        if "extra" not in marker:
            yield needed[0]

"""Packages of conda in the format `.tar.bz2`: https://docs.conda.io/projects/conda/en/stable/user-guide/concepts/packages.html."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

SUBDIR = "linux-64"


def package(folder: Path, name: str, build: str, files: Mapping[str, str], links: Mapping[str, str]) -> None:
    """Write a package of files and symbolic links. `name` is `NAME-VERSION`."""
    plain, version = name.rsplit("-", 1)
    index = {"name": plain, "version": version, "build": build, "build_number": 0, "depends": [], "subdir": SUBDIR}
    paths = [
        {"_path": path, "path_type": kind, "sha256": hashlib.sha256(data).hexdigest(), "size_in_bytes": len(data)}
        for kind, texts in (("hardlink", files), ("softlink", dict.fromkeys(links, "")))
        for path, data in ((path, text.encode()) for path, text in texts.items())
    ]
    described = {
        "info/index.json": json.dumps(index),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"{name}-{build}.tar.bz2", "w:bz2") as archive:
        for path, text in {**described, **files}.items():
            member = tarfile.TarInfo(path)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
        for path, target in links.items():
            link = tarfile.TarInfo(path)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)

"""Records of the sources of a snapshot: the state of a working tree, and datasets that another tool tracks."""

import msgspec


class SourceState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a working tree. Paths are relative to its root, and sorted.

    `files` are tracked files, and untracked files that are not ignored, with the files of submodules and nested
    repositories. `changed` are paths that differ from `commit`, missing files included; `commit` is None on an unborn
    branch and without a repository. `untracked` are the files that git does not track, all of them without a
    repository. `remote` and `author` have no credentials.
    """

    commit: str | None
    branch: str | None
    remote: str | None
    author: str | None
    files: tuple[bytes, ...]
    changed: tuple[bytes, ...] = ()
    untracked: frozenset[bytes] = frozenset()
    notes: tuple[str, ...] = ()


class TrackedDataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset that another tool pins.

    `path` is inside the workspace, `pin` is the file that names the dataset, `hash` the tool's own hash of the content.
    `executable` is the mode in the pin; the mode on disk does not count. `remote` is the name of the remote in the pin,
    `size_bytes` the size in the pin. With `is_plain`, hashes of files are MD5 of their bytes, as in DVC 3.
    """

    path: bytes
    pin: bytes
    hash: str
    executable: bool = False
    remote: str | None = None
    size_bytes: int | None = None
    is_plain: bool = True

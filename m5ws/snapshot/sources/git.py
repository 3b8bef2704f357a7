"""State of a working tree from the git executable: its files, commit, branch, remote and author.

Nothing is written: optional locks are off, and no hook, monitor or fetch is started. File names are the file system's
own bytes everywhere.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from m5ws.errors import M5Error
from m5ws.snapshot.sources.interface import SourceState

_NEVER = frozenset((b".git", b".m5ws"))
_GIT = ("git", "-c", "core.fsmonitor=false")
"""First words of each git command: the file system monitor is off."""
_KEPT_VARIABLES = ("GIT_CONFIG_", "GIT_EXEC_PATH", "GIT_DISCOVERY_ACROSS_FILESYSTEM")
_FACTS = ("config", "-z", "--get-regexp", r"^(remote\..*\.url|branch\..*\.remote|user\.(name|email))$")
_STATUS = (
    *("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--no-renames"),
    *("--ignore-submodules=none", "--", "."),
)
_LIST = ("ls-files", "-z", "-v", "--stage")


class GitError(M5Error):
    """Git failed. The message is git's."""


class _Listing(msgspec.Struct):
    """One repository's part of the state. Paths are relative to the folder in which git ran."""

    commit: str | None = None
    branch: str | None = None
    files: list[bytes] = msgspec.field(default_factory=list)
    changed: set[bytes] = msgspec.field(default_factory=set)
    untracked: set[bytes] = msgspec.field(default_factory=set)
    nested: set[bytes] = msgspec.field(default_factory=set)


class Git:
    """Reads working trees. Git gets `environment`, without variables that name another repository."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = _kept(environment)

    def state(self, root: Path) -> SourceState:
        """Return the state of the working tree at `root`, with files below `root` alone. Raises GitError.

        Without a repository it has every file. It never has `.git` and `.m5ws`.
        """
        root = Path(os.path.realpath(root))
        if not _in_repository(root):
            return _folder_state(root)
        with ThreadPoolExecutor(4, thread_name_prefix="m5ws-git") as pool:
            listing = self._listing(root, pool)
            facts = pool.submit(self._facts, root)
            is_empty = not listing.files and not listing.nested
            if is_empty and self._run(root, "check-ignore", ".", accept=(0, 1)):
                note = "git ignores the workspace: it was captured as a plain folder"
                return _folder_state(root, (note,))
            notes = self._descend(root, listing, pool)
        remote, author = _remote_and_author(facts.result(), listing.branch)
        return SourceState(
            commit=listing.commit,
            branch=listing.branch,
            remote=remote,
            author=author,
            files=tuple(listing.files),
            changed=tuple(sorted(listing.changed)),
            untracked=frozenset(listing.untracked),
            notes=tuple(notes),
        )

    def author(self, root: Path) -> str | None:
        """Return git's user for the repository around `root`; None without a repository or a user. Raises GitError."""
        if not _in_repository(root):
            return None
        return _remote_and_author(self._facts(root), None)[1]

    def check(self, root: Path) -> str:
        """Return git's version, after git has accepted the repository around `root`, if there is one. Raises
        GitError.
        """
        if _in_repository(root):
            self._run(root, "rev-parse", "--show-toplevel")
        return self._run(root, "version").decode("utf-8", "replace").strip()

    def _descend(self, root: Path, listing: _Listing, pool: ThreadPoolExecutor) -> list[str]:
        """Add the files of submodules and nested repositories, and return notes about them."""
        notes: list[str] = []
        for folder in sorted(listing.nested):
            inside = root / os.fsdecode(folder)
            if not os.path.lexists(inside / ".git"):
                notes.append(f"submodule {_text(folder)} is not checked out: its files are not captured")
                continue
            inner = self._listing(inside, pool)
            notes += [f"{_text(folder)}: {note}" for note in self._descend(inside, inner, pool)]
            listing.files += [folder + b"/" + path for path in inner.files]
            listing.untracked |= {folder + b"/" + path for path in inner.untracked}
        if listing.nested:
            listing.files.sort()
        return notes

    def _listing(self, root: Path, pool: ThreadPoolExecutor) -> _Listing:
        listed = pool.submit(self._run, root, *_LIST)
        status = pool.submit(self._run, root, *_STATUS)
        listing = _Listing()
        tracked = _read_files(root, listed.result(), listing)
        # git's paths begin at the top of its working tree, and `root` may be a folder in it.
        below = not os.path.lexists(root / ".git")
        prefix = self._run(root, "rev-parse", "--show-prefix")[:-1] if below else b""
        absent = _read_status(status.result(), prefix, listing)
        listing.untracked = {*listing.files}
        listing.files = tracked
        if listing.untracked or absent or any(b".m5ws" in path for path in listing.files):
            present = {*listing.files}.difference(absent).union(listing.untracked)
            listing.files = sorted(path for path in present if b".m5ws" not in path or not _never(path))
        listing.changed = {path for path in listing.changed if not _never(path)}
        return listing

    def _facts(self, root: Path) -> dict[str, str]:
        text = self._run(root, *_FACTS, accept=(0, 1)).decode("utf-8", "replace")
        return {key: value for key, _, value in (item.partition("\n") for item in text.split("\0") if item)}

    def _run(self, root: Path, *arguments: str, accept: tuple[int, ...] = (0,)) -> bytes:
        try:
            result = subprocess.run(
                [*_GIT, *arguments],
                cwd=root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
        except FileNotFoundError as error:
            raise GitError(f"{root} is in a git repository, but `git` is not on PATH", hint="Install git.") from error
        if result.returncode not in accept:
            message = result.stderr.decode("utf-8", "backslashreplace").strip()
            raise GitError(f"git {arguments[0]} failed in {root}: {message or f'exit status {result.returncode}'}")
        return result.stdout


def _kept(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for git: `environment` without the variables that name another repository."""
    own = {
        name: value
        for name, value in environment.items()
        if not name.startswith("GIT_") or name.startswith(_KEPT_VARIABLES)
    }
    return own | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def _in_repository(root: Path) -> bool:
    """Return True if git would find a repository at `root` or above it."""
    return any(os.path.lexists(folder / ".git") for folder in (root, *root.parents))


def _read_status(output: bytes, prefix: bytes, listing: _Listing) -> set[bytes]:
    """Fill `listing` from porcelain v2, and return tracked paths that are not in the working tree.

    Paths start at the repository's top. https://git-scm.com/docs/git-status#_porcelain_format_version_2
    """
    absent: set[bytes] = set()
    for line in output.split(b"\0"):
        kind = line[:2]
        if kind == b"? ":
            path = line[2:].removeprefix(prefix)
            if path.endswith(b"/"):
                listing.nested.add(path[:-1])
            else:
                listing.files.append(path)
            listing.changed.add(path.rstrip(b"/"))
        elif kind in (b"1 ", b"u "):
            fields = line.split(b" ", 8 if kind == b"1 " else 10)
            path = fields[-1].removeprefix(prefix)
            listing.changed.add(path)
            if fields[5 if kind == b"1 " else 6] == b"000000":
                absent.add(path)
        elif kind == b"# ":
            _read_header(line, listing)
    return absent


def _read_header(line: bytes, listing: _Listing) -> None:
    _, name, value = line.split(b" ", 2)
    if name == b"branch.oid" and value != b"(initial)":
        listing.commit = value.decode("ascii")
    elif name == b"branch.head" and value != b"(detached)":
        listing.branch = _text(value)


def _read_files(root: Path, output: bytes, listing: _Listing) -> list[bytes]:
    """Return tracked paths, sorted, without files of a sparse checkout. Submodules go to `listing.nested`.

    A line is `TAG MODE OBJECT STAGE<TAB>PATH`. `git status` does not list files with a tag other than H (sparse
    checkout, assume-unchanged), so they are looked up on disk.
    """
    lines = output.split(b"\0")
    lines.pop()
    plain = [line[line.index(b"\t") + 1 :] for line in lines if line.startswith(b"H 100")]
    if len(plain) == len(lines):
        return plain
    for line in lines:
        head, _, path = line.partition(b"\t")
        if head[2:8] == b"160000":
            listing.nested.add(path)
        elif not head.startswith(b"H 100") and (head.startswith((b"H", b"M")) or _present(root, path)):
            plain.append(path)
    return sorted(set(plain))


def _present(root: Path, path: bytes) -> bool:
    """Return True if a file exists, and no folder in its path is a link."""
    location = os.fsencode(root)
    *folders, name = path.split(b"/")
    for folder in folders:
        location = os.path.join(location, folder)
        if os.path.islink(location):
            return False
    return os.path.lexists(os.path.join(location, name)) and not os.path.isdir(os.path.join(location, name))


def _folder_state(root: Path, notes: tuple[str, ...] = ()) -> SourceState:
    """Return the state of a folder without version control: every file below it."""
    special: list[str] = []
    files = tuple(sorted(_walk(os.fsencode(root), b"", special)))
    return SourceState(
        commit=None,
        branch=None,
        remote=None,
        author=None,
        files=files,
        untracked=frozenset(files),
        notes=(*notes, *sorted(special)),
    )


def _walk(folder: bytes, prefix: bytes, special: list[str]) -> Iterator[bytes]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = prefix + entry.name
            if entry.name in _NEVER:
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, path + b"/", special)
            elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
                yield path
            else:
                special.append(f"{_text(path)} is neither a file nor a link, and was not captured")


def _never(path: bytes) -> bool:
    return not _NEVER.isdisjoint(path.split(b"/"))


def _text(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


def _remote_and_author(facts: Mapping[str, str], branch: str | None) -> tuple[str | None, str | None]:
    """Return the URL of the branch's remote, else of `origin`, else of the first, and git's user."""
    urls = {key[7:-4]: url for key, url in facts.items() if key.startswith("remote.")}
    wanted = (facts.get(f"branch.{branch}.remote", ""), "origin", *sorted(urls))
    url = next((urls[name] for name in wanted if name in urls), None)
    name, email = facts.get("user.name"), facts.get("user.email")
    author = f"{name} <{email}>" if name and email else name or email
    return (without_credentials(url) if url is not None else None), author


def without_credentials(url: str) -> str:
    """Return a remote's URL without password, token, query and fragment. Only URLs of ssh keep the user name.

    In https URLs the user name is often the token.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return re.sub(r"^([^/@:]*):[^/@]*@", r"\1@", url)
    rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if at and scheme.lower().endswith("ssh"):
        host = f"{user.partition(':')[0]}@{host}"
    return f"{scheme}://{host}{slash}{path}"

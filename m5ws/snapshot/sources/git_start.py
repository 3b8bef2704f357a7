"""Starts git, and a glance's git processes before anything else is imported.

Python needs longer to import m5ws than git to compare a large working tree: so the program begins the glance of an
unchanged workspace first of all (`begin_ahead`), and `git_glance`, which says why it can be believed, takes it over.
This module is as light as can be.
"""

import os
import subprocess

from m5ws.errors import M5Error
from m5ws.filesystem import mode_and_stamp, stamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GIT = ("git", "-c", "core.fsmonitor=false")
"""How each command of git begins: no monitor is asked."""
_KEPT_VARIABLES = ("GIT_CONFIG_", "GIT_EXEC_PATH", "GIT_DISCOVERY_ACROSS_FILESYSTEM")
FACTS = ("config", "-z", "--get-regexp", r"^(remote\..*\.url|branch\..*\.remote|user\.(name|email))$")
# Nothing that a user sets may have git look less closely.
_CLOSELY = ("core.checkStat=default", "core.trustctime=true", "core.fileMode=true", "core.ignoreStat=false")
_OPTIONS = tuple(word for setting in (*_CLOSELY, "core.untrackedCache=false") for word in ("-c", setting))
_HEAD = ("rev-parse", "HEAD", "--symbolic-full-name", "HEAD")
_DIFFERENT = (*_OPTIONS, "diff-files", "--raw", "-z", "--no-renames", "--ignore-submodules=none", "--relative")
_NO_FACT = 1
_UNTRACKED = (*_OPTIONS, "ls-files", "-z", "--others", "--exclude-standard")


class GitError(M5Error):
    """Git refused or failed; the message is its own."""


Said = tuple[tuple[bytes, ...], int]
"""What a glance said, and when git's index was written, in nanoseconds."""


class Looking:
    """Git at work on a glance at `root`: on files that differ, untracked ones, `FACTS`, and HEAD."""

    def __init__(self, root: str, environment: "Mapping[str, str]") -> None:
        """Raises FileNotFoundError if there is no index yet, GitError if there is no git."""
        self._index = _index(root, environment)
        self._before = os.stat(self._index)
        self.root = root
        self.environment = environment
        # The longest first; all are at work before any is waited for.
        commands = (_DIFFERENT, _UNTRACKED, FACTS, _HEAD)
        self._started = list[subprocess.Popen[bytes]]()
        try:
            for command in commands:
                self._started.append(_start(root, environment, command))
        except (OSError, GitError):
            self.stop()
            raise
        self._said: list[Said | None] = []

    def stop(self) -> None:
        """End git's processes, whatever they do."""
        for started in self._started:
            started.kill()
            started.communicate()

    def said(self) -> Said | None:
        """Wait for git, and return what its answers come to; None where a glance does not tell all, or git failed."""
        if not self._said:
            try:
                self._said.append(self._result())
            except OSError:
                self._said.append(None)
        return self._said[0]

    def _result(self) -> Said | None:
        ended = [_end(started) for started in self._started]
        (failed, different), (unlisted, untracked), (unsaid, facts), (headless, head) = ended
        with open(self._index, "rb") as index:
            content = index.read()
        after = os.stat(self._index)
        if failed or unlisted or unsaid > _NO_FACT or headless or _moved(self._before, after):
            return None
        others = [path for path in untracked.split(b"\0") if path and b".m5ws" not in path.split(b"/")]
        # Git does not look into a nested repository.
        if any(path.endswith(b"/") for path in others):
            return None
        loose = _stamps(self.root, (*_names(different), *others))
        outputs = (head, different, b"\0".join(others), facts)
        return (content, *outputs, loose), after.st_mtime_ns


_ahead: list[Looking] = []


def begin_ahead(root: str, environment: "Mapping[str, str]") -> Looking | None:
    """Begin a glance at `root` that `look` will take over; None where that fails, which is left for then to say."""
    root = os.path.realpath(root)
    _ahead.clear()
    if not in_repository(root):
        return None
    try:
        _ahead[:] = [Looking(root, kept(environment))]
    except (OSError, GitError):
        return None
    return _ahead[0]


def look(root: str, environment: "Mapping[str, str]") -> Looking:
    """Return a glance that was begun ahead, once, or begin one. Raises as `Looking`."""
    begun = _ahead.pop() if _ahead else None
    same = begun is not None and begun.root == root and begun.environment == environment
    return begun if begun is not None and same else Looking(root, environment)


def kept(environment: "Mapping[str, str]") -> dict[str, str]:
    """Return what git is started with: `environment` less what would point it elsewhere."""
    own = {name: value for name, value in environment.items() if not name.startswith("GIT_")}
    own |= {name: value for name, value in environment.items() if name.startswith(_KEPT_VARIABLES)}
    return own | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def in_repository(root: str) -> bool:
    """Return whether git would find a repository at `root` or above it."""
    while not os.path.lexists(os.path.join(root, ".git")):
        root, below = os.path.dirname(root), root
        if root == below:
            return False
    return True


def no_git(root: str) -> GitError:
    """Return what is to be said where git cannot be started."""
    return GitError(f"{root} is in a git repository, and there is no `git` to read it", hint="Install git.")


def _start(root: str, environment: "Mapping[str, str]", words: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    """Start git in `root`. Raises GitError if there is none, OSError."""
    try:
        return subprocess.Popen(
            [*GIT, "-C", root, *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise no_git(root) from error


def _end(started: "subprocess.Popen[bytes]") -> tuple[int, bytes]:
    """Wait for a program's end; return its exit status and output."""
    output, _ = started.communicate()
    return started.returncode, output


def _index(root: str, environment: "Mapping[str, str]") -> str:
    """Return where git keeps its index of the working tree that `root` is in."""
    if os.path.isdir(os.path.join(root, ".git")):
        return os.path.join(root, ".git", "index")
    failed, said = _end(_start(root, environment, ("rev-parse", "--git-path", "index")))
    if failed:
        raise FileNotFoundError(f"git names no index of {root}")
    return os.path.join(root, os.fsdecode(said.rstrip(b"\n")))


def _moved(before: os.stat_result, after: os.stat_result) -> bool:
    """Return whether git wrote its index meanwhile: it does so by replacing it."""
    return stamp(before) != stamp(after)


def _names(output: bytes) -> "Iterable[bytes]":
    """Return the paths in what `diff-files --raw -z` prints: for each file what differs, then its path."""
    return output.split(b"\0")[1::2]


def _stamps(root: str, paths: "Iterable[bytes]") -> bytes:
    """Return, as text, what must be equal for files to count as unchanged."""
    lines = list[str]()
    for path in paths:
        try:
            found = os.lstat(os.path.join(os.fsencode(root), path))
        except OSError:
            lines.append("absent")
            continue
        lines.append(" ".join(map(str, mode_and_stamp(found))))
    return "\n".join(lines).encode()

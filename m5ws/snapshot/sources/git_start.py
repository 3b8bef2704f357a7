"""Starts git, and the git processes of a glance before most imports.

To import m5ws takes longer than git's comparison of a large working tree. So the program starts the glance first
(`start_early`), and `git_glance` takes the processes over. This module imports little for the same reason.
"""

import os
import subprocess

from m5ws.errors import M5Error
from m5ws.filesystem import mode_and_stamp, stamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GIT = ("git", "-c", "core.fsmonitor=false")
"""First words of each git command: the file system monitor is off."""
_KEPT_VARIABLES = ("GIT_CONFIG_", "GIT_EXEC_PATH", "GIT_DISCOVERY_ACROSS_FILESYSTEM")
FACTS = ("config", "-z", "--get-regexp", r"^(remote\..*\.url|branch\..*\.remote|user\.(name|email))$")
# These options override user settings with which git would compare fewer properties of files.
_CLOSELY = ("core.checkStat=default", "core.trustctime=true", "core.fileMode=true", "core.ignoreStat=false")
_OPTIONS = tuple(word for setting in (*_CLOSELY, "core.untrackedCache=false") for word in ("-c", setting))
_HEAD = ("rev-parse", "HEAD", "--symbolic-full-name", "HEAD")
_DIFFERENT = (*_OPTIONS, "diff-files", "--raw", "-z", "--no-renames", "--ignore-submodules=none", "--relative")
_NO_FACT = 1
_UNTRACKED = (*_OPTIONS, "ls-files", "-z", "--others", "--exclude-standard")


class GitError(M5Error):
    """Git failed. The message is git's."""


Result = tuple[tuple[bytes, ...], int]
"""The outputs of a glance, and the time when git's index was written, in nanoseconds."""


class GlanceProcesses:
    """Git processes of a glance at `root`: files that differ, untracked files, `FACTS`, and HEAD."""

    def __init__(self, root: str, environment: "Mapping[str, str]") -> None:
        """Raises FileNotFoundError if there is no index yet, GitError if git is not installed."""
        self._index = _index(root, environment)
        self._before = os.stat(self._index)
        self.root = root
        self.environment = environment
        # The longest first. All are started before the first wait.
        commands = (_DIFFERENT, _UNTRACKED, FACTS, _HEAD)
        self._processes = list[subprocess.Popen[bytes]]()
        try:
            for command in commands:
                self._processes.append(_start(root, environment, command))
        except (OSError, GitError):
            self.stop()
            raise
        self._results: list[Result | None] = []

    def stop(self) -> None:
        """Kill git's processes, and wait for their end."""
        for process in self._processes:
            process.kill()
            process.communicate()

    def result(self) -> Result | None:
        """Wait for git, and return the outputs of the glance; None if it is not enough, or if git failed."""
        if not self._results:
            try:
                self._results.append(self._read())
            except OSError:
                self._results.append(None)
        return self._results[0]

    def _read(self) -> Result | None:
        ended = [_end(process) for process in self._processes]
        (diff_status, different), (list_status, listed), (facts_status, facts), (head_status, head) = ended
        with open(self._index, "rb") as index:
            content = index.read()
        after = os.stat(self._index)
        if diff_status or list_status or facts_status > _NO_FACT or head_status or _moved(self._before, after):
            return None
        untracked = [path for path in listed.split(b"\0") if path and b".m5ws" not in path.split(b"/")]
        # Git does not list the files of a nested repository.
        if any(path.endswith(b"/") for path in untracked):
            return None
        stamps = _stamps(self.root, (*_names(different), *untracked))
        outputs = (head, different, b"\0".join(untracked), facts)
        return (content, *outputs, stamps), after.st_mtime_ns


_early: list[GlanceProcesses] = []


def start_early(root: str, environment: "Mapping[str, str]") -> GlanceProcesses | None:
    """Start a glance at `root` for a later call of `start`. None if that fails: the later call raises the error."""
    root = os.path.realpath(root)
    _early.clear()
    if not in_repository(root):
        return None
    try:
        _early[:] = [GlanceProcesses(root, kept(environment))]
    except (OSError, GitError):
        return None
    return _early[0]


def start(root: str, environment: "Mapping[str, str]") -> GlanceProcesses:
    """Return the glance that was started early, once, or start one. Raises as `GlanceProcesses`."""
    early = _early.pop() if _early else None
    same = early is not None and early.root == root and early.environment == environment
    return early if early is not None and same else GlanceProcesses(root, environment)


def kept(environment: "Mapping[str, str]") -> dict[str, str]:
    """Return the variables for git: `environment` without those that name another repository."""
    own = {name: value for name, value in environment.items() if not name.startswith("GIT_")}
    own |= {name: value for name, value in environment.items() if name.startswith(_KEPT_VARIABLES)}
    return own | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def in_repository(root: str) -> bool:
    """Return True if git would find a repository at `root` or above it."""
    while not os.path.lexists(os.path.join(root, ".git")):
        root, below = os.path.dirname(root), root
        if root == below:
            return False
    return True


def no_git(root: str) -> GitError:
    """Return the error for a repository without a git executable."""
    return GitError(f"{root} is in a git repository, but `git` is not on PATH", hint="Install git.")


def _start(root: str, environment: "Mapping[str, str]", words: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    """Start git in `root`. Raises GitError if it is not installed, OSError."""
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


def _end(process: "subprocess.Popen[bytes]") -> tuple[int, bytes]:
    """Wait for a process, and return its exit status and output."""
    output, _ = process.communicate()
    return process.returncode, output


def _index(root: str, environment: "Mapping[str, str]") -> str:
    """Return the path of git's index for the working tree around `root`."""
    if os.path.isdir(os.path.join(root, ".git")):
        return os.path.join(root, ".git", "index")
    status, output = _end(_start(root, environment, ("rev-parse", "--git-path", "index")))
    if status:
        raise FileNotFoundError(f"git names no index of {root}")
    return os.path.join(root, os.fsdecode(output.rstrip(b"\n")))


def _moved(before: os.stat_result, after: os.stat_result) -> bool:
    """Return True if git replaced its index meanwhile."""
    return stamp(before) != stamp(after)


def _names(output: bytes) -> "Iterable[bytes]":
    """Return the paths in the output of `diff-files --raw -z`, which has a description and a path for each file."""
    return output.split(b"\0")[1::2]


def _stamps(root: str, paths: "Iterable[bytes]") -> bytes:
    """Return the modes and stamps of files as text: they are equal for unchanged files."""
    lines = list[str]()
    for path in paths:
        try:
            status = os.lstat(os.path.join(os.fsencode(root), path))
        except OSError:
            lines.append("absent")
            continue
        lines.append(" ".join(map(str, mode_and_stamp(status))))
    return "\n".join(lines).encode()

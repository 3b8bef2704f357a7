"""Starts git, and a glance's git processes before anything else is imported.

Python needs longer to import m5ws than git to compare a large working tree: so the program begins the glance of an
unchanged workspace first of all (`begin_ahead`), and `git_glance` takes it over. This module is as light as can be.
"""

import os
import subprocess
from collections.abc import Callable, Mapping

from m5ws.errors import M5Error

End = Callable[[], "subprocess.CompletedProcess[bytes]"]
"""Waits for git to end."""
_KEPT_VARIABLES = ("GIT_CONFIG_", "GIT_EXEC_PATH", "GIT_DISCOVERY_ACROSS_FILESYSTEM")
FACTS = ("config", "-z", "--get-regexp", r"^(remote\..*\.url|branch\..*\.remote|user\.(name|email))$")
# Nothing that a user sets may have git look less closely.
_CLOSELY = ("core.checkStat=default", "core.trustctime=true", "core.fileMode=true", "core.ignoreStat=false")
_OPTIONS = tuple(word for setting in (*_CLOSELY, "core.untrackedCache=false") for word in ("-c", setting))
_HEAD = ("rev-parse", "HEAD", "--symbolic-full-name", "HEAD")
_DIFFERENT = (*_OPTIONS, "diff-files", "--raw", "-z", "--no-renames", "--ignore-submodules=none", "--relative")
_UNTRACKED = (*_OPTIONS, "ls-files", "-z", "--others", "--exclude-standard")


class GitError(M5Error):
    """Git refused or failed; the message is its own."""


class Looking:
    """Git at work on a glance at `root`; `before` is what its index was like when that began.

    `ends` waits for what git says of files that differ, of untracked ones, of `FACTS`, and of HEAD.
    """

    def __init__(self, root: str, environment: Mapping[str, str]) -> None:
        """Raises FileNotFoundError if there is no index yet, GitError if there is no git."""
        self.index = _index(root, environment)
        self.before = os.stat(self.index)
        self.root = root
        self.environment = environment
        # The longest first; all are at work before any is waited for.
        commands = (_DIFFERENT, _UNTRACKED, FACTS, _HEAD)
        self.ends = [start(root, environment, subprocess.DEVNULL, command) for command in commands]


_ahead: list[Looking] = []


def begin_ahead(root: str, environment: Mapping[str, str]) -> None:
    """Begin a glance at `root` that `look` will take over; what fails now is left for then to say."""
    root = os.path.realpath(root)
    if in_repository(root):
        try:
            _ahead[:] = [Looking(root, kept(environment))]
        except (OSError, GitError):
            return


def look(root: str, environment: Mapping[str, str]) -> Looking:
    """Return a glance that was begun ahead, once, or begin one. Raises as `Looking`."""
    begun = _ahead.pop() if _ahead else None
    same = begun is not None and begun.root == root and begun.environment == environment
    return begun if begun is not None and same else Looking(root, environment)


def kept(environment: Mapping[str, str]) -> dict[str, str]:
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


def start(root: str, environment: Mapping[str, str], errors: int, arguments: tuple[str, ...]) -> End:
    """Start git in `root`, and return what waits for it; what it says of `errors` goes there. Raises GitError."""
    command = ("git", "-c", "core.fsmonitor=false", *arguments)
    try:
        process = subprocess.Popen(
            command, cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        )
    except FileNotFoundError as error:
        raise GitError(
            f"{root} is in a git repository, and there is no `git` to read it", hint="Install git."
        ) from error

    def end() -> "subprocess.CompletedProcess[bytes]":
        with process:
            out, err = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return end


def _index(root: str, environment: Mapping[str, str]) -> str:
    """Return where git keeps its index of the working tree that `root` is in."""
    if os.path.isdir(os.path.join(root, ".git")):
        return os.path.join(root, ".git", "index")
    said = start(root, environment, subprocess.DEVNULL, ("rev-parse", "--git-path", "index"))().stdout
    return os.path.join(root, os.fsdecode(said.rstrip(b"\n")))

"""Starts programs and reads what they say, without `subprocess`: to import that takes a tenth of the time in which an
unchanged workspace is answered (docs/design/0013).
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PIECE_BYTES = 2**20
_UNKNOWN = 255
_KILL, _DEFAULTS = 9, (13, 25)
"""SIGKILL; and SIGPIPE and SIGXFSZ, which Python ignores and a program does not. The import of `signal`, which names
them, takes milliseconds, as `contextlib`'s does."""
_PIPE_SIZE = 1031
"""F_SETPIPE_SZ of Linux (https://man7.org/linux/man-pages/man2/F_SETPIPE_SZ.2const.html)."""


class Started:
    """A program at work. One of `end`, `stop` and `ends` is to be called."""

    def __init__(self, child: int, said: int) -> None:
        self._child, self.said = child, said

    def end(self) -> tuple[int, bytes]:
        """Wait for its end; return its exit status and what it said."""
        pieces = list[bytes]()
        while piece := os.read(self.said, _PIECE_BYTES):
            pieces.append(piece)
        return self.ended(), b"".join(pieces)

    def stop(self) -> int:
        """End it, whatever it does, and return its exit status."""
        os.close(self.said)
        working, status = self._waited(os.WNOHANG)
        if working:
            os.kill(self._child, _KILL)
            _, status = self._waited(0)
        return status

    def ended(self) -> int:
        """Wait for its end, if it says nothing more, and return its exit status."""
        os.close(self.said)
        return self._waited(0)[1]

    def _waited(self, options: int) -> tuple[bool, int]:
        """Return whether it is still at work, and its exit status."""
        try:
            child, status = os.waitpid(self._child, options)
        except ChildProcessError:
            # Who started this has children waited for by the system (SIGCHLD is ignored): how it ended is not known.
            return False, _UNKNOWN
        return not child, os.waitstatus_to_exitcode(status)


def ends(programs: "Sequence[Started]", most_bytes: int, limit_s: float | None = None) -> list[bytes] | None:
    """Wait for programs that work side by side; return what each said.

    None if one failed, or if they say more than `most_bytes` or take longer than `limit_s`: then they are stopped.
    """
    import select
    import time

    said: dict[int, list[bytes]] = {program.said: [] for program in programs}
    waiting, left = select.poll(), {*said}
    for descriptor in said:
        waiting.register(descriptor)
    until_s = None if limit_s is None else time.monotonic() + limit_s
    try:
        while left and most_bytes >= 0:
            wait_ms = None if until_s is None else max(0.0, 1e3 * (until_s - time.monotonic()))
            ready = waiting.poll(wait_ms)
            if not ready:
                break
            for descriptor, _ in ready:
                if piece := os.read(descriptor, _PIECE_BYTES):
                    said[descriptor].append(piece)
                    most_bytes -= len(piece)
                else:
                    waiting.unregister(descriptor)
                    left.remove(descriptor)
    finally:
        # Also where this is interrupted.
        failed = [program.stop() if program.said in left else program.ended() for program in programs]
    return None if left or any(failed) else [b"".join(pieces) for pieces in said.values()]


def found(name: str, environment: "Mapping[str, str]", folder: str) -> str | None:
    """Return the program of this name on the environment's PATH, from `folder` where that is relative; None if none."""
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    candidates = (os.path.join(folder, one, name) for one in folders)
    return next((path for path in candidates if os.access(path, os.X_OK) and os.path.isfile(path)), None)


def start(program: str, words: list[str], environment: "Mapping[str, str]", fed: bytes = b"") -> Started:
    """Start a program that reads `fed`, says what it finds on stdout, and complains to nobody. Raises OSError.

    What is fed is no more than a pipe holds.
    """
    for descriptor in _inherited():
        os.set_inheritable(descriptor, False)
    said, out = os.pipe()
    given = -1
    try:
        given = _holding(fed) if fed else os.open(os.devnull, os.O_RDONLY)
        actions = [
            (os.POSIX_SPAWN_DUP2, given, 0),
            (os.POSIX_SPAWN_DUP2, out, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        _widen(out)
        child = os.posix_spawn(program, words, environment, file_actions=actions, setsigdef=_DEFAULTS)
        return Started(child, said)
    except OSError:
        os.close(said)
        raise
    finally:
        os.close(out)
        if given >= 0:
            os.close(given)


def _holding(fed: bytes) -> int:
    """Return the end of a pipe that this can be read from."""
    end, begin = os.pipe()
    try:
        os.set_blocking(begin, False)
        if os.write(begin, fed) != len(fed):
            raise BlockingIOError(len(fed), "more than a pipe holds")
    except OSError:
        os.close(end)
        raise
    finally:
        os.close(begin)
    return end


def _widen(pipe: int) -> None:
    """Have a pipe hold more than 64 KiB, so that a program need not wait until somebody reads what it says."""
    import fcntl

    try:  # noqa: SIM105
        fcntl.fcntl(pipe, _PIPE_SIZE, _PIECE_BYTES)
    except OSError:
        # There are systems that cannot, and users that have had their share.
        pass


def _inherited() -> list[int]:
    """Return what this process would hand on beside its standard streams: a lock, say, that its parent holds."""
    try:
        listed = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return []
    return [descriptor for descriptor in listed if descriptor > 2 and _is_handed_on(descriptor)]


def _is_handed_on(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:
        return False

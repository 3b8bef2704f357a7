"""Programs that an engine runs on this machine, or by ssh on another."""

import shlex
import subprocess

from m5ws.engines.interface import EngineUnavailable

TIMEOUT_S = 60.0
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")


def over_ssh(host: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that runs a program on a host. ssh reads its own configuration, and asks no question."""
    return (*_SSH, host, shlex.join(words))


def output(words: tuple[str, ...], text: str = "", hint: str = "", timeout_s: float = TIMEOUT_S) -> str:
    """Run a program with a text as its input, and return its output. Raises EngineUnavailable, with its errors."""
    try:
        done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=timeout_s, check=False)
    except FileNotFoundError as error:
        raise EngineUnavailable(f"there is no program {words[0]}", hint=hint) from error
    except subprocess.TimeoutExpired as error:
        raise EngineUnavailable(f"{words[0]} did not answer in {timeout_s:.0f} s", hint=hint) from error
    if done.returncode:
        printed = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise EngineUnavailable(f"`{shlex.join(words)}` ended with status {done.returncode}:\n{printed}", hint=hint)
    return done.stdout


def accept_one(words: tuple[str, ...]) -> str:
    """Return a command as shell, with status 1 as success: the command printed a result."""
    return f"{shlex.join(words)} || [ $? -eq 1 ]"

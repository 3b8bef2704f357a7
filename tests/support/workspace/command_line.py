"""The command line in this process: calls `m5ws.cli.main` and returns its output and exit status."""

import io
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from subprocess import CompletedProcess

import pytest

from m5ws.cli import main
from m5ws.launch import local
from tests.support.ranks.forks import ForkLauncher, ForkParents

OF_LIBRARIES = ("PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR")
"""Variables that DeepSpeed and torch set in a process that imports them, such as the tests' own."""


def inherited() -> dict[str, str]:
    """Return the variables of a user's shell: the variables of this process without `OF_LIBRARIES`."""
    return {name: value for name, value in os.environ.items() if name not in OF_LIBRARIES}


@contextmanager
def forked_ranks(parents: ForkParents) -> Iterator[None]:
    """Have `call` start ranks as forks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "LocalLauncher", partial(ForkLauncher, parents))
        yield


def call(*arguments: str, environment: Mapping[str, str] | None = None) -> "CompletedProcess[str]":
    """Run `m5ws` in this process, with variables added, and return the output and status of a separate process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    kept, handlers, level = dict(os.environ), list(logging.root.handlers), logging.root.level
    for name in OF_LIBRARIES:
        os.environ.pop(name, None)
    os.environ.update(environment or {})
    try:
        with redirect_stdout(out), redirect_stderr(err):
            status = main(list(arguments))
    finally:
        os.environ.clear()
        os.environ.update(kept)
        logging.root.handlers[:], logging.root.level = handlers, level
    outputs = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return CompletedProcess([sys.executable, "-m", "m5ws", *arguments], status, *outputs)

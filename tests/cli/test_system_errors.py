"""Errors of the machine: the message has the path or the store, and the hint has the remedy."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from m5ws.cli import system_errors
from m5ws.store.local import LocalStore

_OF_A_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENOMEM)
_OF_A_FILE = (errno.ENOENT, errno.EEXIST, errno.ENAMETOOLONG, errno.EBUSY)


@pytest.mark.parametrize("number", [*_OF_A_DISK, *_OF_A_FILE])
def test_an_error_of_the_system_has_path_and_remedy(number: int) -> None:
    described = system_errors.describe(OSError(number, os.strerror(number), "/some/path"))
    assert described is not None
    message, hint = described
    assert message == f"{os.strerror(number)}: /some/path" and hint.endswith(".") and "m5ws -v" not in hint


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOENT, "no file is named"),
        OSError(errno.EBADF, "bad", "/some/path"),
        OSError("no errno"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    ],
)
def test_an_unexpected_system_error_has_no_description(error: OSError | UnicodeError) -> None:
    assert system_errors.describe(error) is None


def test_text_that_is_not_utf8_is_named() -> None:
    with pytest.raises(UnicodeEncodeError) as raised:
        os.fsdecode(b"/home/\xff/w").encode()
    assert system_errors.describe(raised.value) == (
        "not UTF-8: '/home/\\udcff/w'",
        "Rename the file or folder, or give other text.",
    )


def test_the_error_of_an_unwritable_store_names_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "tmp" / "0123"))

    store = LocalStore(tmp_path)
    for call in ("write", "link", "fsync", "open"):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, refuse)
            with pytest.raises(OSError, match=f"in store {tmp_path}'$") as raised:
                store.create("runs/a/run", b"data")
        assert raised.value.errno == errno.ENOSPC and "0123" not in str(raised.value)


def test_a_workspace_with_a_path_that_is_not_utf8_is_refused(m5: Any, place: Path, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/nu\xff"))
    place.rename(folder)
    for words in (("snapshot",), ("run",), ("ls",)):
        done = m5("-C", folder, *words)
        assert (done.status, done.out) == (2, "") and "not UTF-8" in done.err and "Rename its folder" in done.err
    assert not (folder / ".m5ws").exists()

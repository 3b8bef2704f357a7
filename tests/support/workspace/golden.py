"""Golden files: files of the repository with the expected text of a test. `pytest --update-golden` rewrites them."""

import difflib
import warnings
from pathlib import Path

import pytest

FLAG = "--update-golden"
FOLDER = Path(__file__).parents[2] / "data" / "golden"
_ROOT = Path(__file__).parents[3]


class Golden:
    """The golden files below `folder`; with `update` they are rewritten instead of compared."""

    def __init__(self, *, update: bool, regenerate: str, folder: Path = FOLDER) -> None:
        self.update = update
        self.regenerate = regenerate
        self.folder = folder

    def check(self, name: str, text: str) -> None:
        """Compare `text` with the file; fails with a unified diff and the command that rewrites the file."""
        path = self.folder / name
        golden = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text == golden:
            return
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            warnings.warn(f"golden file rewritten: {_shown(path)}", stacklevel=2)
            return
        lines = difflib.unified_diff(
            golden.splitlines(), text.splitlines(), f"{_shown(path)} (golden)", f"{_shown(path)} (now)", lineterm=""
        )
        pytest.fail("\n".join([*lines, "", f"If the change is meant: {self.regenerate}"]), pytrace=False)

    def check_names(self, folder: str, names: set[str]) -> None:
        """Compare the names of a folder's files with `names`; fails for a stale file."""
        stale = sorted(path for path in (self.folder / folder).iterdir() if path.name not in names)
        if not stale:
            return
        if self.update:
            for path in stale:
                path.unlink()
                warnings.warn(f"golden file deleted: {_shown(path)}", stacklevel=2)
            return
        listed = ", ".join(map(_shown, stale))
        pytest.fail(f"stale golden files: {listed}\n\nTo delete them: {self.regenerate}", pytrace=False)


def _shown(path: Path) -> str:
    return str(path.relative_to(_ROOT)) if path.is_relative_to(_ROOT) else path.name

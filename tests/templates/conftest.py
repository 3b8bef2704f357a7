"""Templates as they are shipped, their modules loaded from their files, and workspaces made from them."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from m5ws.projects import init

TEMPLATES = Path(__file__).parents[2] / "templates"


@pytest.fixture(scope="session")
def module() -> Iterator[Callable[[str], ModuleType]]:
    """Loads a module that templates share, by its name."""
    loaded = []

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"template_{name}", TEMPLATES / "gpt" / f"{name}.py")
        assert spec is not None and spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = found
        loaded.append(spec.name)
        spec.loader.exec_module(found)
        return found

    yield load
    for name in loaded:
        sys.modules.pop(name, None)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder with some text in two files, and a file that is not text."""
    folder = tmp_path / "text"
    folder.mkdir()
    lines = [f"{number} bottles of beer on the wall, naïve {number * number} 世界\n" for number in range(3000)]
    (folder / "b.txt").write_text("".join(lines), encoding="utf-8")
    (folder / "a.txt").write_text("first\n")
    (folder / "c.bin").write_bytes(b"\xff\xfe\x00")
    return folder


def shrink(workspace: Path) -> None:
    """Make the model of a workspace small enough for a test."""
    config = workspace / "config.yaml"
    small = {"vocabulary": 400, "length": 32, "layers": 2, "width": 32, "steps": 6, "checkpoint_every": 3}
    lines = [
        f"{key}: {small[key]}" if (key := line.partition(":")[0]) in small else line
        for line in config.read_text().splitlines()
    ]
    config.write_text("\n".join(lines) + "\n")


@pytest.fixture
def workspace(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a workspace from a template, with a model that a test has time for."""

    def make(template: str) -> Path:
        root = tmp_path / template
        init.apply(init.plan(root, template))
        shrink(root)
        return root

    return make

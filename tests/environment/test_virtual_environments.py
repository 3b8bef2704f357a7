"""Virtual environments from recipes, installed by real pip from wheels that the tests make."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import blake3
import pytest

from m5ws.environment.observe import own_package
from m5ws.environment.rebuild import interpreters
from m5ws.environment.rebuild.interpreters import NoPython
from m5ws.environment.rebuild.pip import NotInstalled
from m5ws.environment.rebuild.virtual_environments import VirtualEnvironments
from m5ws.errors import UsageError
from m5ws.launch.local import LocalLauncher
from m5ws.records.launch import LaunchRequest, Observing
from m5ws.records.recipe import Recipe, Requirement
from tests.support.files import wheels
from tests.support.workspace.checkouts import write

pytestmark = pytest.mark.services

_HERE = ".".join(map(str, sys.version_info[:3]))
_MINOR = ".".join(map(str, sys.version_info[:2]))


class Shop:
    """Wheels to install from, and a folder of environments."""

    def __init__(self, folder: Path) -> None:
        self.root, self.links, self.kept = folder / "workspace", folder / "links", folder / "kept"
        self.one = wheels.wheel(self.links, "greeting", "1.0", {"greeting.py": "TEXT = 'one'\n"})
        wheels.wheel(self.links, "greeting", "1.0+other", {"greeting.py": "TEXT = 'other'\n"})
        wheels.wheel(self.links, "greeting", "2.0", {"greeting.py": "TEXT = 'two'\n"})
        self.environment = wheels.only(self.links)

    def build(self, recipe: Recipe, code: Mapping[str, str] | None = None) -> Path:
        """Return the interpreter of the recipe's environment."""
        kept = VirtualEnvironments(self.kept, self.environment, LocalLauncher, Observing(root=str(self.root)))
        return Path(kept.build(recipe, lambda target: write(target, code or {})).python)

    @property
    def built(self) -> list[Path]:
        """The folder of every environment, incomplete environments included."""
        return [path for path in self.kept.iterdir() if path.is_dir() and not path.name.startswith("m5ws-")]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def recipe(*requirements: Requirement, python: str = _HERE) -> Recipe:
    return Recipe(python=python, requirements=requirements)


def output(python: Path, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_an_environment_with_exactly_the_named_requirements_is_built_once(shop: Shop) -> None:
    wanted = recipe(Requirement(name="greeting", version="1.0", url=shop.one.as_uri(), hash=wheels.sha256(shop.one)))
    with ThreadPoolExecutor(2) as pool:
        python, again = pool.map(shop.build, (wanted, wanted))
    assert output(python, "import greeting; print(greeting.TEXT)") == "one"  # 1.0, not 1.0+other
    # The distributions of `venv` itself are gone.
    assert (
        output(python, "import importlib.metadata as m; print([d.name for d in m.distributions()])") == "['greeting']"
    )
    log = python.parents[2] / "pip.log"
    assert again == python and len(shop.built) == 1 and log.read_text().count("Successfully installed") == 1

    # An incomplete environment, as after a kill, is built again.
    (python.parents[2] / "complete").unlink()
    (python.parents[1] / "half").touch()
    assert shop.build(wanted) == python and not (python.parents[1] / "half").exists()
    # A complete environment is not built again: without the wheel, pip would fail.
    shop.one.unlink()
    assert shop.build(wanted) == python


def test_a_failed_installation_is_explained_and_leaves_no_complete_environment(shop: Shop) -> None:
    for wanted, reason in (
        (Requirement(name="greeting", version="1.0", url=shop.one.as_uri(), hash="0" * 64), "DO NOT MATCH THE HASHES"),
        (Requirement(name="greeting", version="3.0"), "No matching distribution found for greeting===3.0"),
    ):
        with pytest.raises(NotInstalled) as raised:
            shop.build(recipe(wanted))
        assert reason.lower() in str(raised.value).lower()
        log = raised.value.hint.rpartition(": ")[2]
        assert "PIP_INDEX_URL" in raised.value.hint and Path(log).is_file()
    assert not [place for place in shop.built if (place / "complete").exists()]


@pytest.mark.soak
def test_m5ws_can_be_imported_with_any_pythonpath_of_a_run(shop: Shop, tmp_path: Path) -> None:
    kept = VirtualEnvironments(shop.kept, shop.environment, LocalLauncher, Observing(root=str(shop.root)))
    made = kept.build(recipe(Requirement(name="greeting", version="1.0")), lambda target: write(target, {}))
    write(
        tmp_path,
        {"work/src/mine.py": "", "work/look.py": "import importlib.util as u, mine; u.find_spec('m5ws').origin"},
    )
    request = LaunchRequest(
        argv=(made.python, "look.py"),
        cwd=str(tmp_path / "work"),
        environment={"PYTHONPATH": "src"},
        log=str(tmp_path / "log"),
    )
    process = made.launcher.launch(request)
    while (status := process.poll()) is None:
        time.sleep(0.01)
    assert status == 0, (tmp_path / "log").read_text()


@pytest.mark.soak
def test_pip_variables_do_not_change_the_installation_folder(shop: Shop, tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    shop.environment |= {"PIP_TARGET": elsewhere, "PIP_PREFIX": elsewhere, "PIP_USER": "1"}
    python = shop.build(recipe(Requirement(name="greeting", version="1.0")))
    assert output(python, "import greeting; print(greeting.TEXT)") == "one"
    assert not (tmp_path / "elsewhere").exists()


def test_a_missing_python_version_is_refused_with_a_hint(shop: Shop) -> None:
    with pytest.raises(NoPython, match=r"3\.99\.1.*python3\.99\b") as raised:
        shop.build(recipe(python="3.99.1"))
    assert "pyenv install 3.99.1" in raised.value.hint
    with pytest.raises(NoPython, match=re.escape(_HERE)) as raised:
        interpreters.find(f"{_MINOR}.99", shop.environment)
    assert "--env warn" in raised.value.hint
    near = interpreters.find(f"{_MINOR}.99", shop.environment, same_patch=False)
    assert output(near, "import sys; print('%d.%d' % sys.version_info[:2])") == _MINOR


def test_environments_are_not_kept_in_the_workspace(shop: Shop) -> None:
    inside = shop.root / "cache"
    with pytest.raises(UsageError, match=re.escape(str(inside))):
        VirtualEnvironments(inside, {}, LocalLauncher, Observing(root=str(shop.root)))


def test_a_copy_of_m5ws_contains_only_m5ws(tmp_path: Path) -> None:
    copy = own_package.copy(tmp_path / "kept")
    assert own_package.copy(tmp_path / "kept") == copy and len(list((tmp_path / "kept").iterdir())) == 1
    code = "from m5ws.environment.observe import own_package as own; print(own.__file__, own.code())"
    needed = os.pathsep.join([str(copy), str(Path(blake3.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": needed}
    )
    assert done.stdout.split() == [str(copy / "m5ws/environment/observe/own_package.py"), own_package.code()]
    assert own_package.is_copy_of_m5ws(copy)
    (copy / "mine.py").touch()
    assert not own_package.is_copy_of_m5ws(copy)

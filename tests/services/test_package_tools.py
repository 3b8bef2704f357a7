"""Environments that pip, uv, Poetry and conda made: pinned, observed, and rebuilt for a replay.

uv and Poetry are the real programs. The registry of Python's packages has no conda, mamba or micromamba. So rattler,
the library of pixi, installs packages of conda that the test makes, and its package `python` is a link to the
interpreter of the tests. conda itself does not run.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path

import msgspec
import pytest
import tomlkit

from m5ws.environment.observe import own_package
from tests.conftest import loud_skip
from tests.support.files import conda_packages, wheels
from tests.support.network import package_index
from tests.support.workspace.checkouts import commit_all, git, write
from tests.support.workspace.places import Place

pytestmark = pytest.mark.services

_PROGRAMS = {"uv": "uv==0.13.9", "poetry": "poetry==2.5.1", "python": "py-rattler==0.28.0"}
"""Programs, and the distributions that bring them."""
_NEEDED = ("torch", "numpy", "blake3", "click", "msgspec", "packaging", "pathspec", "rich", "ruamel.yaml", "tomlkit")
_VERSION = ".".join(map(str, sys.version_info[:3]))
_SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
_SCRIPT = """
import os, pathlib, sys
import cloned, greeting, tools
# An editable install leads to the snapshot's copy.
assert tools.__file__.startswith((os.getcwd(), f"{sys.prefix}/lib")), tools.__file__
pathlib.Path("out").mkdir(exist_ok=True)
pathlib.Path("out/said.txt").write_text(greeting.TEXT)
"""
_SETTINGS = "[run]\ncommand = ['train.py']\noutputs = ['out']\n[mlflow]\nenabled = false\n"
_IGNORED = ".m5ws/\n.venv/\n*.egg-info/\n"


def source(name: str) -> dict[str, str]:
    """Return the files of a project with one module, which setuptools builds."""
    build = "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
    return {"pyproject.toml": f"{build}[project]\nname = '{name}'\nversion = '3'\n", f"{name}.py": "A = 7\n"}


class Shop(msgspec.Struct, frozen=True):
    """A private index with a password, and a git repository. `commit` is of the distribution `cloned`."""

    index: str
    git: str
    commit: str
    pinned: tuple[str, ...]
    hashes: dict[str, str]
    environment: dict[str, str]

    def run(self, *words: str | Path, folder: Path | None = None) -> None:
        done = subprocess.run(words, cwd=folder, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"

    def pip(self, place: Place, *words: str) -> None:
        """Install into the environment of a workspace, which has no pip."""
        command = (sys.executable, "-m", "pip", "--python", place.python, "install", "--no-deps")
        self.run(*command, *words, folder=place.root)

    def place(self, folder: Path, files: Mapping[str, str]) -> Place:
        """Return a workspace with a script. Its environment, `.venv`, is not made yet."""
        root = folder / "workspace"
        libraries = {f"libs/tools/{path}": text for path, text in source("tools").items()}
        write(root, {"m5ws.toml": _SETTINGS, "train.py": _SCRIPT, ".gitignore": _IGNORED, **libraries, **files})
        commit_all(root)
        return Place(root, str(root / ".venv" / "bin" / "python"), self.environment)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    files, repository = folder / "served" / "files", folder / "served" / "git" / "cloned"
    pinned = wheels.borrowed(files, folder / "shelf", *_NEEDED)
    wheels.wheel(files, "m5ws", "0.1.0", {"m5ws_here.pth": f"{own_package.copy(folder / 'own')}\n"})
    for version in ("1.0", "2.0"):
        wheels.wheel(files, "greeting", version, {"greeting.py": f"TEXT = 'hello of {version}'\n"})
    write(folder / "cloned", source("cloned"))
    commit_all(folder / "cloned")
    git(folder, "clone", "-q", "--bare", "cloned", str(repository))
    git(repository, "update-server-info")
    tools = ("PIP_", "UV_", "POETRY_")
    kept = {name: value for name, value in wheels.only(folder).items() if not name.startswith(tools)}
    kept |= {"PIP_CONFIG_FILE": "/dev/null", "XDG_CACHE_HOME": str(folder / "cache"), "UV_PYTHON": sys.executable}
    kept |= {"POETRY_VIRTUALENVS_IN_PROJECT": "true", "POETRY_VIRTUALENVS_OPTIONS_NO_PIP": "true"}
    for name, value in (("USERNAME", package_index.USER), ("PASSWORD", package_index.SECRET)):
        kept |= {f"UV_INDEX_PRIVATE_{name}": value, f"POETRY_HTTP_BASIC_PRIVATE_{name}": value}
    with package_index.serve(folder / "served") as host:
        kept |= {"PIP_INDEX_URL": f"http://{package_index.USER}:{package_index.SECRET}@{host}/simple/"}
        yield Shop(
            index=f"http://{host}/simple/",
            git=f"http://{host}/git/cloned",
            pinned=(*pinned, "m5ws==0.1.0", "greeting==1.0"),
            hashes={path.name.removesuffix("-py3-none-any.whl"): wheels.sha256(path) for path in files.iterdir()},
            commit=git(repository, "rev-parse", "HEAD"),
            environment=kept | {"NO_PROXY": "127.0.0.1"},
        )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A program of `_PROGRAMS`, which pip with its own configuration installs."""

    @cache
    def install(name: str) -> Path:
        place = tmp_path_factory.mktemp(name)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True, capture_output=True)
        words = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "--quiet"]
        done = subprocess.run([*words, _PROGRAMS[name]], capture_output=True, text=True, check=False)
        if done.returncode:
            loud_skip(f"pip could not install {_PROGRAMS[name]}: {done.stderr[-300:]}")
        return place / "bin" / name

    return install


def check(shop: Shop, place: Place, lock: str, restore: Callable[[], object]) -> None:
    """Check a run with `greeting` 1.0 and its replays after an upgrade. `restore` installs from the lock file."""
    run = place.m5ws("run", "--no-progress").stdout.strip()
    began = place.observed(run)
    versions = dict(pinned.split("==") for pinned in shop.pinned) | {"cloned": "3", "tools": "3"}
    assert began.distributions == versions
    origins = {name: str(origin) for name, origin in (began.origins or {}).items()}
    assert origins.pop("tools").endswith("the workspace's libs/tools")
    assert origins == {"cloned": f"vcs {shop.git} {shop.commit}"}
    snapshot = json.loads(place.m5ws("show", run, "--json").stdout)["run"]["snapshot"]
    assert f"lock {lock}" in place.m5ws("show", snapshot).stdout

    shop.pip(place, "greeting==2.0")
    assert "distribution.greeting  1.0" in place.m5ws("reproduce", run, expect=2).stderr
    verdict = json.loads(place.m5ws("reproduce", run, "--env", "rebuild", "--json").stdout)
    assert verdict["outcome"] == "reproduced" and [each["name"] for each in verdict["changes"]] == ["rebuilt"]
    assert place.observed(verdict["replay"]).distributions == versions
    assert "no conda environment" in place.m5ws("show", run, "--lock", "conda", expect=2).stderr

    restore()
    assert json.loads(place.m5ws("reproduce", run, "--json").stdout)["changes"] == []
    stored = [path for path in (place.root / ".m5ws").rglob("*") if path.is_file()]
    assert not [path for path in stored if package_index.SECRET.encode() in path.read_bytes()]


@pytest.mark.soak
def test_an_environment_of_pip_is_pinned_observed_and_rebuilt(shop: Shop, tmp_path: Path) -> None:
    names = {each: each.replace("-", "_").replace("==", "-") for each in shop.pinned}
    lines = [f"{each} --hash=sha256:{shop.hashes[name]}\n" for each, name in names.items()]
    place = shop.place(tmp_path, {"requirements.txt": "".join(lines)})
    shop.run(sys.executable, "-m", "venv", "--without-pip", place.root / ".venv")
    shop.pip(place, "--requirement", "requirements.txt")
    shop.pip(place, f"cloned @ git+{shop.git}@{shop.commit}", "./libs/tools")
    check(shop, place, "requirements.txt", lambda: shop.pip(place, "--requirement", "requirements.txt"))


@pytest.mark.soak
def test_an_environment_of_uv_is_pinned_observed_and_rebuilt(
    shop: Shop, tmp_path: Path, program: Callable[[str], Path]
) -> None:
    settings = {
        "index": [{"name": "private", "url": shop.index, "default": True}],
        "sources": {"cloned": {"git": shop.git, "rev": shop.commit}, "tools": {"path": "libs/tools", "editable": True}},
        "link-mode": "symlink",  # The environment has links into the cache of uv.
    }
    needed = {"name": "study", "version": "0", "dependencies": [*shop.pinned, "cloned", "tools"]}
    project = {"project": needed | {"requires-python": ">=3.11"}, "tool": {"uv": settings}}
    place = shop.place(tmp_path, {"pyproject.toml": tomlkit.dumps(project)})
    shop.run(program("uv"), "sync", folder=place.root)
    assert (place.root / ".venv" / _SITE / "greeting.py").is_symlink()
    check(shop, place, "uv.lock", lambda: shop.run(program("uv"), "sync", "--frozen", folder=place.root))


@pytest.mark.soak
def test_an_environment_of_poetry_is_pinned_observed_and_rebuilt(
    shop: Shop, tmp_path: Path, program: Callable[[str], Path]
) -> None:
    sources = {"cloned": {"git": shop.git, "rev": shop.commit}, "tools": {"path": "libs/tools", "develop": True}}
    needed = {"python": ">=3.11,<4", **dict(each.split("==") for each in shop.pinned), **sources}
    index = [{"name": "private", "url": shop.index, "priority": "primary"}]
    project = {"package-mode": False, "source": index, "dependencies": needed}
    place = shop.place(tmp_path, {"pyproject.toml": tomlkit.dumps({"tool": {"poetry": project}})})
    for verb in ("lock", "install"):
        shop.run(program("poetry"), verb, folder=place.root)
    check(shop, place, "poetry.lock", lambda: shop.run(program("poetry"), "sync", folder=place.root))


def channel(folder: Path) -> Path:
    """Write a channel with a Python, two builds of a library, and two versions of `greeting`, and return its folder."""
    python = Path(sys.executable).resolve()
    links = {"bin/python3": str(python), "bin/python": "python3"}
    alone = {"pyvenv.cfg": f"home = {python.parent}\ninclude-system-site-packages = false\n"}
    add = partial(conda_packages.package, folder / conda_packages.SUBDIR)
    add(f"python-{_VERSION}", "h0", alone, links)
    for build in ("h1", "h2"):
        add("libmath-1.2", build, {"lib/libmath.so.1": build}, {})
    for version in ("1.0", "2.0"):
        info = f"{_SITE}/greeting-{version}.dist-info"
        # As in conda's packages, the URL is a folder of the machine that built the package.
        url = '{"url": "file:///home/conda/feedstock_root/work", "dir_info": {}}'
        described = {f"{info}/METADATA": f"Name: greeting\nVersion: {version}\n", f"{info}/direct_url.json": url}
        add(f"greeting-{version}", "py_0", {f"{_SITE}/greeting.py": f"TEXT = '{version}'\n", **described}, {})
    return folder


@pytest.mark.soak
def test_an_environment_of_conda_is_pinned_observed_and_listed_for_conda(
    shop: Shop, tmp_path: Path, program: Callable[[str], Path]
) -> None:
    packages = channel(tmp_path / "channel")

    def install(prefix: str, *specs: str) -> Place:
        script = Path(__file__).parent / "scripts" / "conda_environment.py"
        shop.run(program("python"), script, packages, tmp_path / prefix, *specs)
        return msgspec.structs.replace(place, python=str(tmp_path / prefix / "bin" / "python"))

    place = shop.place(tmp_path, {})
    place = install("first", "python", "greeting ==1.0", "libmath ==1.2 h1")
    shop.pip(place, *shop.pinned[:-1], f"cloned @ git+{shop.git}@{shop.commit}", "--editable", "libs/tools")
    run = place.m5ws("run", "--no-progress").stdout.strip()
    began = place.observed(run)
    assert began.distributions.keys() == {*(each.split("==")[0] for each in shop.pinned), "cloned", "tools"}
    facts = {name: value for name, value in began.facts.items() if name.startswith("conda.")}
    archives = {name: packages / "linux-64" / f"{name}.tar.bz2" for name in (f"python-{_VERSION}-h0", "libmath-1.2-h1")}
    lines = [f"{path.as_uri()}#sha256:{wheels.sha256(path)}" for path in archives.values()]
    assert facts == {"conda.python": lines[0], "conda.libmath": lines[1]}

    refused = place.m5ws("reproduce", run, "--env", "rebuild", expect=2).stderr
    assert "3 packages of conda" in refused and f"--prefix ./conda-{run} --file conda.txt" in refused
    install("first", "python", "greeting ==2.0", "libmath ==1.2 h2")
    changed = place.m5ws("reproduce", run, expect=2).stderr
    assert "distribution.greeting  1.0" in changed and "libmath-1.2-h2" in changed

    # As the error says, with rattler in the place of `conda create`.
    for tool in ("conda", "pip"):
        write(place.root, {f".m5ws/{tool}.txt": place.m5ws("show", run, "--lock", tool).stdout})
    again = install("again", str(place.root / ".m5ws" / "conda.txt"))
    shop.pip(again, "--requirement", ".m5ws/pip.txt", "m5ws==0.1.0")
    verdict = json.loads(again.m5ws("reproduce", run, "--json").stdout)
    assert verdict["outcome"] == "reproduced" and verdict["changes"] == []

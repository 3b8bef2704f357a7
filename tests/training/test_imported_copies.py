"""Ranks import the run's copy of the checkout's code, and no code of other folders, whatever way leads there."""

import textwrap
from pathlib import Path
from typing import Any

import pytest

from m5ws.records.launch import LocalInstall
from tests.support.workspace.checkouts import write

_PACKAGE = {"src/own/__init__.py": "", "src/own/deep.py": "", "src/own_space/part.py": ""}
_FINDER = """
    import importlib.util, sys
    class Finder:
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name == "own":
                return importlib.util.spec_from_file_location(name, {file!r})
    sys.meta_path.append(Finder)
"""
_CHECK = """
    import os, sys
    files = [sys.modules[name].__file__ for name in ("own", "own.deep")]
    assert all(file.startswith(os.getcwd()) for file in files), files
"""


def _script(runner: Any, *parts: str) -> str:
    script = Path(runner.tmp / "script.py")
    script.write_text("\n".join(map(textwrap.dedent, parts)))
    return str(script)


@pytest.fixture
def source(runner: Any) -> Path:
    """The folder with a package in the checkout. The run has a copy of it."""
    write(runner.tmp / "author", _PACKAGE)
    runner.inputs = _PACKAGE
    return Path(runner.tmp / "author" / "src")


def test_a_folder_on_the_path_is_replaced_by_the_runs_copy(runner: Any, source: Path) -> None:
    begin = f"import sys; sys.path.append({str(source)!r}); import own_space.part, own.deep"
    space = "assert all(path.startswith(os.getcwd()) for path in own_space.__path__), own_space.__path__"
    attempt = runner(_script(runner, begin, _CHECK, space))
    assert attempt.status == 0, attempt.log()


def test_an_import_finder_of_a_script_is_overruled(runner: Any, source: Path) -> None:
    begin = _FINDER.format(file=str(source / "own" / "__init__.py"))
    attempt = runner(_script(runner, begin, "import own.deep", _CHECK))
    assert attempt.status == 0, attempt.log()


def test_a_child_process_imports_the_runs_copy(runner: Any, source: Path) -> None:
    code = f"import own.deep\n{textwrap.dedent(_CHECK)}"
    script = _script(runner, f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {code!r}], check=True)")
    attempt = runner(script, environ={"PYTHONPATH": str(source)})
    assert attempt.status == 0, attempt.log()


def test_the_import_of_a_module_without_a_copy_fails(runner: Any, source: Path) -> None:
    write(source, {"ignored/__init__.py": ""})
    begin = f"import sys; sys.path.append({str(source)!r}); print('before')\nimport ignored\nprint('after')"
    attempt = runner(_script(runner, begin))
    assert attempt.status == 2 and "NotIsolated" in attempt.log()
    assert "before" in attempt.log() and "after\n" not in attempt.log()


@pytest.mark.parametrize("allowed", [False, True])
def test_only_an_imported_local_install_causes_an_error_or_a_notice(runner: Any, allowed: bool) -> None:
    folder = runner.tmp / "elsewhere"
    write(folder, {"src/layers/__init__.py": "", "venv/lib/site-packages/installed.py": ""})
    runner.local_installs = (LocalInstall(name="our-layers", kind="editable", url=folder.as_uri(), allowed=allowed),)
    paths = [str(folder / "src"), str(folder / "venv" / "lib" / "site-packages")]
    begin = f"import importlib.util, sys; sys.path += {paths}; import installed"
    probe = "assert importlib.util.find_spec('layers')"
    unused = runner(_script(runner, begin, probe))
    assert unused.status == 0 and unused.notices("limit") == []
    imported = runner(_script(runner, begin, "import layers"))
    assert imported.status == (0 if allowed else 2), imported.log()
    if allowed:
        (limit,) = imported.notices("limit")
        assert "our-layers" in limit
    else:
        assert "allow_local" in imported.log() and f"ln -s {folder / 'src'} our-layers" in imported.log()


def test_a_copied_install_is_recognised_by_its_files(runner: Any) -> None:
    site = runner.tmp / "lib" / "site-packages"
    info = "our_layers-1.0.dist-info"
    record = f"copied.py,,\n{info}/METADATA,,\n"
    write(site, {"copied.py": "", "other.py": "", f"{info}/METADATA": "Name: our-layers\n", f"{info}/RECORD": record})
    runner.local_installs = (LocalInstall(name="our-layers", kind="directory", url="file:///build/our-layers"),)
    path = {"PYTHONPATH": str(site)}
    assert runner(_script(runner, "import other"), environ=path).status == 0
    assert "our-layers" in runner(_script(runner, "import copied"), environ=path).log()

"""Files that a script did not find, and that only the checkout has, are named with the line for m5ws.toml."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from m5ws.training.runtime import script_error
from tests.support.ranks.orders import orders
from tests.support.workspace.checkouts import write


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A checkout with ignored data, and a work directory without them."""
    ignored = {"data/train.txt": "", "cfg/extra.json": "", ".m5ws/index": ""}
    write(tmp_path / "author", {**ignored, "both.txt": ""})
    write(tmp_path / "work", {"cfg/base.json": ""})
    (tmp_path / "work" / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return orders(tmp_path)


def _pinned(error: BaseException, context: Any) -> str | None:
    """Return the path for [data] paths in the advice."""
    text = script_error.advice(error, context)
    return text.partition('["')[2].partition('"]')[0] if text is not None else None


def _raised(path: str) -> BaseException:
    try:
        open(path).close()
    except OSError as error:
        return error
    raise AssertionError(path)


def test_the_advice_for_a_failed_read_names_the_missing_path(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _pinned(_raised("data/train.txt"), context) == "data"
    assert _pinned(_raised(str(Path(context.work_dir) / "cfg/extra.json")), context) == "cfg/extra.json"
    monkeypatch.chdir("elsewhere")
    assert _pinned(_raised("../data/train.txt"), context) == "data"


def test_the_advice_for_a_missing_output_folder_names_the_outputs_setting(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = script_error.advice(_raised("out/deep/model.pt"), context)
    assert text is not None and "out/deep" in text and 'outputs = ["out"]' in text
    monkeypatch.chdir("elsewhere")
    text = script_error.advice(_raised("out/model.pt"), context)
    assert text is not None and "elsewhere/out" in text and 'outputs = ["elsewhere"]' in text
    assert script_error.advice(_raised("model.pt"), context) is None
    assert script_error.advice(_raised("/nowhere/model.pt"), context) is None


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'data'", name="data"),
        FileNotFoundError(2, "No such file", "data/absent.txt"),
        FileNotFoundError(2, "No such file", ".m5ws/index"),
        FileNotFoundError(2, "No such file", "/etc/absent"),
        FileNotFoundError(2, "No such file", "x" * 5000),
        ValueError("data/train.txt"),
    ],
)
def test_errors_without_a_missing_file_get_no_advice(context: Any, error: BaseException) -> None:
    assert script_error.advice(error, context) is None


def test_a_module_and_a_file_beside_the_workspace_name_the_folder_above(
    context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "mono", {"common/losses.py": "", "common/a.json": "", "exp/vae/train.py": "", "package/x.py": ""})
    inside = msgspec.structs.replace(context, author_dir=str(tmp_path / "mono" / "exp" / "vae"))
    error = ModuleNotFoundError("No module named 'losses'", name="losses.gan")
    assert script_error.advice(error, inside) is None
    monkeypatch.setattr(sys, "path", ["", "../../common", *sys.path])
    for failure in (error, _raised("../../common/a.json")):
        text = script_error.advice(failure, inside)
        assert text is not None and f"{tmp_path}/mono/common/" in text and 'directory = "exp/vae"' in text
        assert f"`m5ws -C {tmp_path}/mono init`" in text
    assert script_error.advice(_raised("../../common/absent.json"), inside) is None

"""`init` writes a workspace whole, or changes nothing."""

import os
from pathlib import Path

import pytest

from m5ws.errors import NotFound
from m5ws.projects import init


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of templates. One template links to files that it shares with other templates."""
    root = tmp_path / "templates"
    monkeypatch.setattr(init, "templates_dir", lambda: root)
    (root / "small" / "deep").mkdir(parents=True)
    (root / "shared" / "lib").mkdir(parents=True)
    (root / "shared" / "lib" / "model.py").write_text("model\n")
    (root / "shared" / "one.py").write_text("one\n")
    (root / "small" / "m5ws.toml").write_text("name = 'small'\n")
    (root / "small" / ".gitignore").write_text("*.pt\n")
    (root / "small" / "deep" / "train.py").write_text("train\n")
    (root / "small" / "run.sh").write_text("#!/bin/sh\n")
    (root / "small" / "run.sh").chmod(0o755)
    (root / "small" / "lib").symlink_to("../shared/lib")
    (root / "small" / "one.py").symlink_to("../shared/one.py")
    (root / "small" / "__pycache__").mkdir()
    (root / "small" / "__pycache__" / "x.pyc").write_bytes(b"")
    return root


def _files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("folder")
def test_a_template_is_copied_with_its_links_followed(tmp_path: Path) -> None:
    init.apply(init.plan(tmp_path / "w", "small"))
    assert _files(tmp_path / "w") == {
        ".gitignore": "*.pt\n",
        "deep/train.py": "train\n",
        "lib/model.py": "model\n",
        "m5ws.toml": "name = 'small'\n",
        "one.py": "one\n",
        "run.sh": "#!/bin/sh\n",
    }
    assert not any(path.is_symlink() for path in (tmp_path / "w").rglob("*"))
    assert os.access(tmp_path / "w" / "run.sh", os.X_OK)
    assert not os.access(tmp_path / "w" / "one.py", os.X_OK)


@pytest.mark.usefixtures("folder")
def test_an_unknown_template_is_refused_with_a_list_of_templates(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="'smal'") as caught:
        init.plan(tmp_path / "w", "smal")
    assert "small" in caught.value.hint


@pytest.mark.usefixtures("folder")
def test_every_file_in_the_way_is_named_and_nothing_changes(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    (root / "one.py").write_text("mine\n")
    (root / "deep").write_text("a file where a folder must be\n")
    (root / "run.sh").symlink_to("nowhere")
    before = _files(root)
    with pytest.raises(init.FilesExist) as caught:
        init.plan(root, "small")
    assert str(caught.value).splitlines()[1:] == ["  deep", "  one.py", "  run.sh"]
    assert _files(root) == before


def test_init_of_an_existing_workspace_is_refused_with_the_name_of_its_store(tmp_path: Path) -> None:
    init.apply(init.plan(tmp_path, tables={"store": {"url": "s3://team/m5ws"}}))
    before = _files(tmp_path)
    with pytest.raises(init.FilesExist, match="s3://team/m5ws"):
        init.plan(tmp_path, tables={"store": {"url": "s3://team/other"}})
    assert _files(tmp_path) == before


@pytest.mark.usefixtures("folder")
def test_init_keeps_an_existing_ignore_file(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    (root / ".gitignore").write_text("mine\n")
    planned = init.plan(root, "small")
    init.apply(planned)
    assert planned.kept == (".gitignore",)
    assert (root / ".gitignore").read_text() == "mine\n"


@pytest.mark.usefixtures("folder")
def test_a_file_that_appears_between_plan_and_write_is_not_written_over(tmp_path: Path) -> None:
    planned = init.plan(tmp_path / "w", "small")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "one.py").write_text("mine\n")
    with pytest.raises(init.FilesExist, match="meanwhile"):
        init.apply(planned)
    assert (tmp_path / "w" / "one.py").read_text() == "mine\n"
    assert not (tmp_path / "w" / "m5ws.toml").exists()

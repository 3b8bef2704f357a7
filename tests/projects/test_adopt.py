"""Adopted files: links in the workspace, and their names in m5ws.toml."""

import tomllib
from pathlib import Path

import msgspec
import pytest

from m5ws.config import reader
from m5ws.errors import M5Error
from m5ws.projects import adopt
from m5ws.projects.adopt import Adoption, AdoptionPlan

_FILES = {
    "empty": "",
    "comments": '# head\nname = "x"  # name\n\n[run]  # run\ncommand = ["t.py"] # c\n',
    "data": '[data]\n# pinned\npaths = [\n  "a",  # first\n]\ndvc = false\n\n[run]\nseed = 1\n',
    "tokenizer": '[tokenizer]\nprobe = ""\npath = "t"\n',
    "inline": 'data = { paths = ["a"] }\n',
    "dotted": 'data.paths = ["a"]\n',
    "crlf": '# head\r\n[data]\r\npaths = ["a"]\r\n',
}


def _adoption(section: str, name: str, target: str) -> Adoption:
    values = {"name": name, "target": target, "section": section, "files": 1, "size_bytes": 1}
    return msgspec.convert(values, Adoption)


@pytest.mark.parametrize("text", _FILES.values(), ids=_FILES.keys())
def test_m5ws_toml_names_the_links_and_keeps_all_else(tmp_path: Path, text: str) -> None:
    (tmp_path / "m5ws.toml").write_bytes(text.encode())
    target = tmp_path / "shared"
    target.mkdir()
    new = [_adoption("data", "more", str(target)), _adoption("data", "more-2", str(target))]
    edited = adopt._edited(text, new)
    adopt.apply(AdoptionPlan(root=str(tmp_path), adoptions=tuple(new), old=text, new=edited))
    known = tomllib.loads(text)
    wanted = known | {
        "data": known.get("data", {}) | {"paths": [*known.get("data", {}).get("paths", []), "more", "more-2"]}
    }
    assert tomllib.loads(edited) == wanted
    assert reader.read(tmp_path / "m5ws.toml").data.paths[-2:] == ("more", "more-2")
    assert all(
        part in edited for part in text.replace('"a",', "").replace("\r\n", "\n").split() if part.startswith("#")
    )
    assert ("\r\n" in edited) == ("\r\n" in text)
    assert (tmp_path / "more").readlink() == target


def test_a_file_of_settings_that_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    settings = tmp_path / "m5ws.toml"
    settings.write_text("# another edit\n")
    planned = AdoptionPlan(root=str(tmp_path), adoptions=(), old="", new="[data]\n")
    with pytest.raises(M5Error, match="has changed meanwhile"):
        adopt.apply(planned)
    assert settings.read_text() == "# another edit\n"

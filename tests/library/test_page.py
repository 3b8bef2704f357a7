"""docs/reference/python.md names exactly the public interface, its example runs, and its signatures are pinned."""

import dataclasses
import inspect
import re
import runpy
from collections.abc import Iterator

import msgspec
import pytest

import m5ws
from m5ws import errors
from m5ws.checkpoints.listing import CheckpointInfo
from m5ws.records.note import Note
from m5ws.records.verdict import Divergence, Verdict
from m5ws.training.session.session import Session
from m5ws.training.session.step import Step
from tests.library.conftest import Planted
from tests.support.paths import ROOT
from tests.support.workspace import golden

_REFERENCE = ROOT / "docs" / "reference"
_PAGE = (_REFERENCE / "python.md").read_text(encoding="utf-8")
_CLASSES = {"Workspace": m5ws.Workspace, "Run": m5ws.Run}
_RECORDS: dict[str, type[msgspec.Struct]] = {
    "checkpoint": CheckpointInfo,
    "verdict": Verdict,
    "difference": Divergence,
    "note": Note,
}


@dataclasses.dataclass(frozen=True)
class _Name:
    """A public name, its parameters (None for a value), and its declaration with all types."""

    name: str
    parameters: tuple[str, ...] | None
    declaration: str

    @property
    def shown(self) -> str:
        """The name as the page has it."""
        return self.name if self.parameters is None else f"{self.name}({', '.join(self.parameters)})"


def _public() -> Iterator[_Name]:
    named = {name: getattr(m5ws, name) for name in m5ws.__all__ if name != "adapters"}
    named |= {f"adapters.{name}": getattr(m5ws.adapters, name) for name in m5ws.adapters.__all__}
    for name, value in named.items():
        # Runs are made by a workspace.
        yield _Name(f"m5ws.{name}", None, f"m5ws.{name}") if name == "Run" else _name(f"m5ws.{name}", value)
    for kind, one in _CLASSES.items():
        for name, value in vars(one).items():
            if not name.startswith("_"):
                yield _name(f"{kind}.{name}", value)


def _name(name: str, value: object) -> _Name:
    getter = value.fget if isinstance(value, property) else getattr(value, "func", None)
    if getter is not None:
        return _Name(name, None, f"{name}: {inspect.formatannotation(inspect.signature(getter).return_annotation)}")
    if not callable(value):
        return _Name(name, None, f"{name}: {type(value).__name__}")
    signature = inspect.signature(value)
    if name == "m5ws.session":
        # Its types are torch's, and their modules are not part of the interface.
        bare = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
        signature = inspect.Signature(bare)
    names = tuple(one for one in signature.parameters if one != "self")
    return _Name(name, names, f"{name}{signature}".replace("(self, ", "(").replace("(self)", "()"))


def _cells(heading: str) -> list[list[str]]:
    """Return the rows of the tables below a heading, without their heads."""
    section = _PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def test_the_page_names_exactly_the_public_names() -> None:
    documented = [row[0].strip("`") for heading in ("m5ws", *_CLASSES) for row in _cells(heading)]
    assert sorted(documented) == sorted(one.shown for one in _public())


def test_the_page_names_errors_and_fields_that_exist() -> None:
    for row in _cells("Errors"):
        error = getattr(errors, row[0].strip("`").rpartition(".")[2])
        assert issubclass(error, errors.M5Error)
    assert [row[0].split()[0] for row in _cells("Records")] == list(_RECORDS)
    for kind, fields in _fields().items():
        assert set(fields) <= set(_RECORDS[kind].__struct_fields__), kind


def _fields() -> dict[str, list[str]]:
    """Return the public fields of each record. Words in parentheses are not fields."""
    return {row[0].split()[0]: re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", row[1])) for row in _cells("Records")}


def test_public_signatures_equal_the_golden_file(pytestconfig: pytest.Config) -> None:
    """A difference is a change of the public interface: the page's section on stability has the rules."""
    update = bool(pytestconfig.getoption(golden.FLAG))
    files = golden.Golden(update=update, regenerate=f"pytest {golden.FLAG} tests/library/test_page.py")
    lines = [one.declaration for one in _public() if one.name != "m5ws.__version__"]
    for kind, names in _fields().items():
        types = {field.name: field.type for field in msgspec.structs.fields(_RECORDS[kind])}
        lines += [f"{kind}.{name}: {inspect.formatannotation(types[name])}" for name in names]
    text = "\n".join(lines) + "\n"
    # Python 3.11 prints the module of Annotated, and Python 3.13 that in which Path is written.
    files.check("python.txt", text.replace("typing.Annotated", "Annotated").replace("pathlib._local", "pathlib"))


def test_the_examples_of_the_page_run(planted_workspace: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(planted_workspace.root)
    printed: list[tuple[object, ...]] = []
    names: dict[str, object] = {"print": lambda *words: printed.append(words)}
    for block in re.findall(r"```python\n(.*?)```", _PAGE, re.DOTALL):
        exec(block, names)  # noqa: S102  # the examples of this repository's own page
    (listed, lowest, *of_checkpoints, judged, scores) = printed
    assert (listed[:2], lowest) == ((planted_workspace.run, "baseline"), (0.5,))
    assert [step for step, _ in of_checkpoints] == [2, 4]
    assert judged[:2] == ("diverged", planted_workspace.replay) and scores == (["scores.json"],)


def test_the_page_of_the_session_matches_its_docstrings() -> None:
    page = (_REFERENCE / "session.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(ROOT / ".ci" / "session_page.py"))["page"]()
    assert page == made, "run: python .ci/session_page.py > docs/reference/session.md"


def test_the_page_of_the_session_has_every_public_name_of_the_session_and_its_steps() -> None:
    page = (_REFERENCE / "session.md").read_text(encoding="utf-8")
    step = Step(1, None, recording=False)
    names = [f"step.{name}" for name in (*vars(Step), *vars(step)) if not name.startswith("_")]
    names += [f"session.{name}" for name in (*vars(Session), "first_step") if not name.startswith("_")]
    missing = [name for name in names if name not in page and f"`{name.partition('.')[2]}`" not in page]
    assert missing == []

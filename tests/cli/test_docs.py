"""The reference pages match the code: every command, option, setting, variable and exit code."""

import importlib
import json
import pkgutil
from pathlib import Path
from typing import get_args

import click
import msgspec
import pytest

import m5ws
from m5ws import workspace
from m5ws.cli import BUG, COMMANDS, INTERRUPTED, NO_READER, reference
from m5ws.config.settings import Cluster, HostsCluster, Settings, SlurmCluster
from m5ws.errors import M5Error
from m5ws.records.cause import Rule

_PAGES = Path(__file__).parents[2] / "docs" / "reference"


def _page(name: str) -> str:
    return (_PAGES / name).read_text(encoding="utf-8")


def test_the_page_of_commands_is_up_to_date() -> None:
    assert _page("commands.md") == reference.page(), "run: python -m m5ws.cli.reference > docs/reference/commands.md"


_ALL = {name: command for name, command, _ in reference.commands() if name != "m5ws"}


def test_the_checked_commands_include_the_whole_command_table() -> None:
    assert {f"m5ws {name}" for name in COMMANDS} < _ALL.keys()
    assert "m5ws checkpoint diff" in _ALL


@pytest.mark.parametrize("name", _ALL)
def test_a_command_and_each_of_its_options_are_documented(name: str) -> None:
    command = _ALL[name]
    assert command.help and "Example" in command.help, f"{name} has no example"
    section = _page("commands.md").split(f"## {name}\n")[1].split("\n## ")[0]
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert option.help, f"{option.opts[0]} of {name} has no help"
            assert all(f"{flag}" in section for flag in option.opts)


@pytest.mark.parametrize("name", _ALL)
def test_each_verb_that_prints_a_result_has_json(name: str) -> None:
    command = _ALL[name]
    if not isinstance(command, click.Group):
        assert any("--json" in option.opts for option in command.params)


def _defaults(section: type[msgspec.Struct]) -> dict[str, object]:
    """Return the defaults of a section's keys, and of the keys of the tables in it as TABLE.KEY."""
    defaults: dict[str, object] = {}
    for field in msgspec.structs.fields(section):
        if isinstance(field.default, msgspec.Struct):
            defaults |= {f"{field.name}.{key}": value for key, value in _defaults(type(field.default)).items()}
        else:
            defaults[field.name] = {} if field.default is msgspec.NODEFAULT else field.default
    return defaults


def test_every_setting_is_documented_with_its_default() -> None:
    page = _page("configuration.md")
    for section in msgspec.structs.fields(Settings):
        if section.name in ("name", "extends", "clusters", "causes"):
            continue
        body = page.split(f"## [{section.name}]\n")[1].split("\n## ")[0]
        documented = {row.split("`")[1]: row.split("|")[2].strip() for row in body.splitlines() if row[:3] == "| `"}
        fields = _defaults(section.type)
        assert documented.keys() == fields.keys()
        for name, default in fields.items():
            if (section.name, name) != ("tokenizer", "probe"):
                expected = "none" if default is None else f"`{json.dumps(default)}`"
                assert documented[name] == expected, f"{section.name}.{name}"


@pytest.mark.parametrize("kind", [SlurmCluster, HostsCluster, Rule])
def test_every_setting_of_a_named_table_is_documented_with_its_default(kind: type[msgspec.Struct]) -> None:
    section = "causes" if kind is Rule else "clusters"
    body = _page("configuration.md").split(f"## [{section}.NAME]\n")[1].split("\n## ")[0]
    rows = {row.split("`")[1]: row.split("|")[2].strip() for row in body.splitlines() if row[:3] == "| `"}
    for field in msgspec.structs.fields(kind):
        written = (
            "required" if field.required else "none" if field.default is None else f"`{json.dumps(field.default)}`"
        )
        assert rows[field.name] == written


@pytest.mark.parametrize("kind", get_args(Cluster))
def test_every_key_of_a_cluster_names_its_engine(kind: type[msgspec.Struct]) -> None:
    body = _page("configuration.md").split("## [clusters.NAME]\n")[1].split("\n## ")[0]
    assert f'`"{kind.__struct_config__.tag}"`' in body
    rows = {row.split("`")[1]: row for row in body.splitlines() if row[:3] == "| `"}
    shared = {field.name for field in msgspec.structs.fields(SlurmCluster)} & set(HostsCluster.__struct_fields__)
    for name in kind.__struct_fields__:
        assert name in shared or f"`{kind.__struct_config__.tag}`" in rows[name]


def test_every_variable_that_is_read_is_documented() -> None:
    for name in workspace.VARIABLES:
        assert f"| `{name}` |" in _page("configuration.md")


def _errors() -> dict[str, type[M5Error]]:
    """Every error of the package, by name, but for errors of modules that need a heavy library to be imported."""
    heavy = ("m5ws.training", "m5ws.__main__")
    for module in pkgutil.walk_packages(m5ws.__path__, "m5ws."):
        if not module.name.startswith(heavy):
            importlib.import_module(module.name)
    found: dict[str, type[M5Error]] = {}
    waiting = M5Error.__subclasses__()
    while waiting:
        error = waiting.pop()
        waiting += error.__subclasses__()
        found[error.__name__] = error
    return found


def test_every_exit_code_is_documented() -> None:
    page = _page("exit-codes.md")
    general = {int(row.split("|")[1]) for row in page.splitlines() if row[:3].strip("| ").isdigit()}
    assert {BUG, INTERRUPTED, NO_READER} <= general
    listed = {row.split("`")[1]: int(row.split("|")[2]) for row in page.splitlines() if row[:3] == "| `"}
    known = _errors()
    for name, status in listed.items():
        assert known[name].exit_code == status, name
    for name, error in known.items():
        assert error.exit_code in general, name
        if error.__module__ in ("m5ws.errors", "m5ws.cli.terminal.run_end"):
            assert name in listed, f"{name} is not in docs/reference/exit-codes.md"

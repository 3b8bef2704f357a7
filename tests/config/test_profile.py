"""m5ws.toml inherits the tables of a profile, key by key, and each problem is named in the file that has it."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.config import reader
from m5ws.config.reader import Table
from m5ws.config.settings import HostsCluster, Settings, SlurmCluster
from m5ws.errors import ConfigError

_WORDS = st.text("abc", min_size=1, max_size=3)
_STORE = {
    "url": _WORDS.map("s3://bucket/{}".format),
    "region": _WORDS,
    "endpoint_url": _WORDS.map("http://{}".format),
    "cache_limit": st.integers(0, 9),
}
_SLURM = {"partition": _WORDS, "restarts": st.integers(0, 9), "setup": st.lists(_WORDS, max_size=2), "login": _WORDS}
_MLFLOW = {"tracking_uri": _WORDS.map("http://{}".format), "experiment": _WORDS}


def _tables(required: Mapping[str, st.SearchStrategy[object]]) -> st.SearchStrategy[Table]:
    """Return tables with some keys of each section. `required` are keys of a store and a cluster that must be there."""
    url = {name: strategy for name, strategy in required.items() if name == "url"}
    engine = {name: strategy for name, strategy in required.items() if name == "engine"}
    options = {name: strategy for name, strategy in _STORE.items() if name not in url}
    cluster = st.fixed_dictionaries(engine, optional=_SLURM)
    return st.fixed_dictionaries(
        {"store": st.fixed_dictionaries(url, optional=options)},
        optional={
            "mlflow": st.fixed_dictionaries({}, optional=_MLFLOW),
            "clusters": st.dictionaries(st.sampled_from("xy"), cluster, max_size=2),
        },
    )


_PROFILES = _tables({"url": _STORE["url"], "engine": st.just("slurm")})
_OWN = _tables({"engine": st.just("slurm")})


def _toml(table: Table) -> str:
    """Return a table of tables as TOML. Nested tables are inline."""
    return "".join(f"{name} = {_value(value)}\n" for name, value in table.items())


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_value(inner)}" for name, inner in value.items()) + "}"
    return json.dumps(value)


def _leaves(table: Table, before: tuple[str, ...] = ()) -> dict[tuple[str, ...], object]:
    """Return each value that is no table, by the path of its key."""
    leaves: dict[tuple[str, ...], object] = {}
    for name, value in table.items():
        key = (*before, name)
        leaves |= _leaves(value, key) if isinstance(value, Mapping) else {key: value}
    return leaves


@given(profile=_PROFILES, own=_OWN)
def test_the_workspace_wins_for_each_key_that_both_have(profile: Table, own: Table) -> None:
    assert _leaves(reader.merge(profile, own)) == {**_leaves(profile), **_leaves(own)}


@given(profile=_PROFILES, own=_OWN)
def test_settings_of_two_files_equal_the_settings_of_one_file_with_the_same_keys(
    tmp_path_factory: pytest.TempPathFactory, profile: Table, own: Table
) -> None:
    folder = tmp_path_factory.mktemp("w")
    (folder / "team.toml").write_text(_toml(profile))
    (folder / "m5ws.toml").write_text(_toml({"extends": "team.toml", **own}))
    (folder / "one.toml").write_text(_toml(reader.merge(profile, own)))
    two, one = reader.read(folder / "m5ws.toml"), reader.read(folder / "one.toml")
    assert two.extends == "team.toml"
    assert (two.store, two.mlflow, two.clusters) == (one.store, one.mlflow, one.clusters)


def _write(folder: Path, profile: str, own: str) -> Path:
    (folder / "team.toml").write_text(profile)
    (folder / "m5ws.toml").write_text(f"extends = 'team.toml'\n{own}")
    return folder / "m5ws.toml"


def test_a_workspace_changes_one_key_of_an_inherited_cluster(tmp_path: Path) -> None:
    profile = "[clusters.big]\nengine = 'slurm'\npartition = 'gpu'\n[clusters.lab]\nengine = 'hosts'\nhosts = ['a']\n"
    settings = reader.read(_write(tmp_path, profile, "[clusters.big]\ntime = '1:00'\n"))
    assert settings.clusters == {"big": SlurmCluster(partition="gpu", time="1:00"), "lab": HostsCluster(hosts=("a",))}


def test_an_absolute_path_names_a_profile_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "team.toml").write_text("[store]\nurl = '/data/store'\n")
    (tmp_path / "w" / "m5ws.toml").write_text(f"extends = '{tmp_path}/team.toml'\n")
    assert reader.read(tmp_path / "w" / "m5ws.toml").store.url == "/data/store"


def test_an_inherited_key_without_effect_is_no_problem(tmp_path: Path) -> None:
    profile = "[store]\nurl = 's3://team/a'\nregion = 'x'\n[mlflow]\ntracking_uri = 'http://a'\n"
    settings = reader.read(_write(tmp_path, profile, "[store]\nurl = 'own'\n[mlflow]\nenabled = false\n"))
    assert (settings.store.url, settings.mlflow.enabled) == ("own", False)


@pytest.mark.parametrize(
    ("profile", "own", "expected"),
    [
        ("\n[run]\nnproc = 2\n", "", ("team.toml:2: ", "'run'", "[clusters.NAME]")),
        ("extends = 'other.toml'\n", "", ("team.toml:1: ", "'extends'")),
        ("[store]\nulr = 'b'\n", "", ("team.toml:2: ", "'store.ulr'", "'url'")),
        ("[store]\nulr = 'b'\n", "[store]\nulr = 'c'\n", ("team.toml:2: ", "'store.ulr'")),
        ("[store]\n\nurl = 'shared/store'\n", "", ("team.toml:3: ", "'store.url'", "absolute")),
        ("[store]\nregion = 'x'\n", "", ("team.toml:2: ", "'store.region'", "'store.url'")),
        ("[clusters.big]\ntime = '1'\n", "", ("team.toml:1: ", "'clusters.big'", "engine")),
        ("[store\n", "", ("team.toml: ", "TOML")),
        ("", "[store]\nulr = 'b'\n", ("m5ws.toml:3: ", "'store.ulr'")),
        ("[store]\nurl = '/a'\n", "[store]\nregion = 'x'\n", ("m5ws.toml:3: ", "'store.region'")),
        ("", "[clusters.big]\ntime = '1'\n", ("m5ws.toml:2: ", "'clusters.big'", "engine")),
        ("[store]\nurl = '/a'\n", "store = 3\n", ("m5ws.toml:2: ", "'store'", "table")),
        (
            "[clusters.big]\nengine = 'slurm'\ntime = '1'\n",
            "[clusters.big]\nengine = 'hosts'\nhosts = ['a']\n",
            ("m5ws.toml:2: ", "'clusters.big.time'"),
        ),
    ],
)
def test_a_problem_is_named_in_its_file_with_its_line(
    tmp_path: Path, profile: str, own: str, expected: tuple[str, ...]
) -> None:
    path = _write(tmp_path, profile, own)
    with pytest.raises(ConfigError) as caught:
        reader.read(path)
    problem = str(caught.value)
    assert problem.startswith(f"{tmp_path}/{expected[0]}") and all(part in problem for part in expected), problem


@pytest.mark.parametrize("value", ["nowhere/team.toml", ".", ""])
def test_a_missing_profile_is_an_error_with_a_remedy(tmp_path: Path, value: str) -> None:
    (tmp_path / "m5ws.toml").write_text(f"name = 'w'\nextends = '{value}'\n")
    with pytest.raises(ConfigError, match=r"m5ws\.toml:2: 'extends'") as caught:
        reader.read(tmp_path / "m5ws.toml")
    assert "init --team" in caught.value.hint


def test_a_path_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "m5ws.toml").write_text("extends = 3\n")
    with pytest.raises(ConfigError, match=r"m5ws\.toml:1: 'extends'"):
        reader.read(tmp_path / "m5ws.toml")


def test_an_empty_profile_gives_the_defaults(tmp_path: Path) -> None:
    assert reader.read(_write(tmp_path, "", "")) == Settings(extends="team.toml")

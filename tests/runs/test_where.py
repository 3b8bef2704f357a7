"""Conditions in SQL: they select runs by any column, and can do nothing but read the table of runs."""

import pytest

from m5ws.errors import UsageError
from m5ws.records.run import Parent
from m5ws.runs import where
from m5ws.runs.listing import RunRow

_NOW_S = 1_000_000.0
_RUNS: list[where.DescribedRun] = [
    (
        RunRow(
            id="a", created_s=_NOW_S - 60, name="small", standing="finished", last_step=9, loss=2.5, lowest_loss=2.0
        ),
        {"optimizer.lr": "3e-4", "optimizer.name": "adam", "loss": "mse", "args.lr": "0.1", 'odd "`] key': "1"},
    ),
    (
        RunRow(
            id="b",
            created_s=_NOW_S - 7200,
            standing="failed",
            loss=float("nan"),
            notes=("diverged",),
            why="a hunch",
            note_outcome="refuted",
            sweep="s",
            parent=Parent(run="a", checkpoint="0000000002-0001", step=2, digest="0"),
        ),
        {"optimizer.lr": "0.01", "code": "0123456789", "flag": "true"},
    ),
    (RunRow(id="c", problem="checksum mismatch"), None),
]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("loss < 3", "a"),
        ("loss is null", "bc"),
        ("state = 'failed' or state = 'damaged'", "bc"),
        ("age_s < 3600 and step > 5", "a"),
        (f"created > datetime({_NOW_S:.0f}, 'unixepoch', '-1 hour')", "a"),
        ('"optimizer.lr" >= 1e-3', "b"),
        ("`optimizer.lr` = 0.0003", "a"),
        ("[args.lr] between 0 and 1", "a"),
        ("\"config.loss\" = 'mse'", "a"),
        ('"odd ""`] key" = 1', "a"),
        ("code = '0123456789'", "b"),
        ("flag = 'true' and parent = 'a' and sweep = 's'", "b"),
        ("notes like '%DIVERGED%' and outcome = 'refuted' and why glob 'a*'", "b"),
        ("name = '\"optimizer.lr\"'", ""),
        ("1 -- all", "abc"),
        ("id in (select id from runs where loss > 2)", "a"),
    ],
)
def test_a_condition_selects_runs_by_their_facts_and_parameters(condition: str, expected: str) -> None:
    assert where.matching(_RUNS, condition, _NOW_S) == set(expected)


@pytest.mark.parametrize(
    "condition",
    [
        *("", "loss <", "loss < 3)", "1; drop table runs", "1; select 1", "regexp('a', name)", "load_extension('x')"),
        "1) union select name from sqlite_master where (1",
        "id in (select name from pragma_database_list)",
        "id = (with recursive t(n) as (select 1 union all select n + 1 from t) select max(n) from t)",
        "\x00",
    ],
)
def test_an_invalid_condition_is_refused(condition: str) -> None:
    with pytest.raises(UsageError, match="condition"):
        where.matching(_RUNS, condition, _NOW_S)


@pytest.mark.parametrize(
    ("condition", "near"),
    [
        ('"lr" < 1', '"optimizer.lr", "args.lr"'),
        ('"optimzer.lr" < 1', '"optimizer.lr"'),
        ("lowest_los < 1", '"lowest_loss"'),
    ],
)
def test_an_unknown_column_is_an_error_that_lists_columns_with_a_similar_name(condition: str, near: str) -> None:
    with pytest.raises(UsageError, match="no such column") as refused:
        where.matching(_RUNS, condition, _NOW_S)
    assert f"similar name: {near}" in refused.value.hint
    assert "A run has id, name, user, host, state" in refused.value.hint


def test_names_that_differ_in_case_alone_are_an_error() -> None:
    with pytest.raises(UsageError, match="duplicate column"):
        where.matching([(RunRow(id="a"), {"lr": "1", "LR": "2"})], "lr = 1", _NOW_S)


def test_more_parameters_than_columns_of_a_table_are_searched() -> None:
    many = {f"layer.{number}": str(number) for number in range(5000)}
    assert where.matching([(RunRow(id="a"), many)], '"layer.4999" = 4999', _NOW_S) == {"a"}

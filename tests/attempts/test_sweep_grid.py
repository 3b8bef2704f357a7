"""The grid of a sweep: values, ranges, combinations, and texts that are refused."""

import pytest

from m5ws.attempts import sweep_grid
from m5ws.errors import UsageError


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("lr=1e-4,3e-4", "lr", ("1e-4", "3e-4")),
        ("seed=0:4", "seed", ("0", "1", "2", "3")),
        ("steps=100:0:-50", "steps", ("100", "50")),
        ("model.layers=[1, 2], [3]", "model.layers", ("[1, 2]", "[3]")),
        ("name='a,b',c", "name", ("'a,b'", "c")),
        ("+conf/a.yaml:new={x: 1, y: 2}", "+conf/a.yaml:new", ("{x: 1, y: 2}",)),
        ("time=12:30,12:40", "time", ("12:30", "12:40")),
    ],
)
def test_a_sweep_option_is_parsed_into_a_key_and_values(text: str, key: str, values: tuple[str, ...]) -> None:
    (axis,) = sweep_grid.parse([text])
    assert (axis.key, axis.values) == (key, values)


@pytest.mark.parametrize(
    "texts",
    [
        ["lr"],
        ["=1,2"],
        ["+a.yaml:=1"],
        ["lr="],
        ["lr=1,,2"],
        ["seed=4:4"],
        ["seed=0:9:0"],
        ["lr=1,1"],
        ["lr=1", "lr=2"],
        ["model=a,b", "model.width=1,2"],
        ["seed=0:1001"],
        ["seed=0:99999999999999"],
        ["a=0:32", "b=0:32"],
    ],
)
def test_an_invalid_sweep_grid_is_refused(texts: list[str]) -> None:
    with pytest.raises(UsageError, match="sweep"):
        sweep_grid.parse(texts)


def test_the_values_of_the_last_key_change_first_and_name_the_runs() -> None:
    axes = sweep_grid.parse(["+c.yaml:lr=1,2", "seed=0:2"])
    combinations = list(sweep_grid.combinations(axes))
    assert [tuple(values.values()) for values in combinations] == [("1", "0"), ("1", "1"), ("2", "0"), ("2", "1")]
    assert sweep_grid.name_run("rates", combinations[1]) == "rates lr=1 seed=1"
    assert len(sweep_grid.name_run(None, {"key": "x" * 500})) == 80

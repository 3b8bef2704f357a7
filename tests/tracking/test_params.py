"""Names of parameters and metrics in MLflow: each is accepted, and no two become one."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from m5ws.tracking.mlflow.params import metric_name

_NAMES = st.text(min_size=1, max_size=300) | st.text("k_@#/. ", min_size=1, max_size=6)


@given(_NAMES, _NAMES)
@example("k@1", "k#1")
@example("k@1", "k_1")
@example("a//b", "a/b")
@example("a/../b", "a/b")
@example("x" * 300, "x" * 301)
def test_converted_names_are_valid_and_different_names_stay_different(first: str, second: str) -> None:
    names = [metric_name(first), metric_name(second)]
    assert (names[0] == names[1]) == (first == second)
    for name in names:
        assert re.fullmatch(r"[/\w.\- :]{1,250}", name) and not {"", ".", ".."} & {*name.split("/")}


def test_a_valid_metric_name_is_unchanged() -> None:
    assert metric_name("m5ws/loss of a-b:c.d_1") == "m5ws/loss of a-b:c.d_1"

"""`make mutations` can plant each of its faults in the code as it is now."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def mutations() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("run_mutations", ROOT / "tests" / "run_mutations.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_each_fault_replaces_one_place_and_names_tests_that_exist(mutations: ModuleType) -> None:
    for one in mutations.MUTATIONS:
        assert (ROOT / one.file).read_text().count(one.old) == 1, one.fault
        assert one.new != one.old and all((ROOT / "tests" / test).exists() for test in one.tests), one.fault

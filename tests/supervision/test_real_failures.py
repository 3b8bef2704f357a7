"""Rules of causes on real failures of this machine: the output of each is a log, and its class is known."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from m5ws.records.cause import Cause
from m5ws.supervision import causes
from tests.supervision.scripts import plain_failures
from tests.support.s3.scripted_s3 import ScriptedS3

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
CLASSIFIER = causes.Classifier(causes.builtin())
Logs = Mapping[str, list[str]]
# Read from the text, because this module must not import torch.
TORCH = re.findall(r'^    "([\w.-]+)": ', (SCRIPTS / "torch_failures.py").read_text(), re.MULTILINE)
ALONE = [case for case in TORCH if case not in {"healthy", "gloo-connection"}]
BEGAN = {"script-error.first-rank": "0", "host-out-of-memory.second-rank": "1", "collective-timeout": "0"}


def failure_logs(folder: Path, cases: list[str]) -> dict[str, Logs]:
    """Run cases, and return their logs by case and by name."""
    with ScriptedS3() as server:
        server.always = lambda _method, key: key or None
        environment = {**os.environ, "FAILURES_S3": server.endpoint, "COLUMNS": "80"}
        command = [sys.executable, "-m", "tests.supervision.scripts.failures", str(folder), *cases]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=900)
    return {
        case: {
            path.stem: path.read_text("utf-8", "replace").splitlines()
            for path in sorted((folder / case).glob("*.log"))
            if path.stem != "both"
        }
        for case in cases
    }


def _find(logs: Logs) -> Cause:
    cause = CLASSIFIER.find(logs, {})
    assert cause is not None, logs
    return cause


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Logs]:
    return failure_logs(tmp_path_factory.mktemp("plain"), list(plain_failures.CASES))


@pytest.fixture(scope="module")
def of_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Logs]:
    return failure_logs(tmp_path_factory.mktemp("torch"), TORCH)


@pytest.mark.parametrize("case", plain_failures.CASES)
def test_the_class_of_a_failure_is_found(plain: dict[str, Logs], case: str) -> None:
    cause = _find(plain[case])
    assert (cause.kind, cause.rank) == (case.partition(".")[0], "0")
    assert cause.evidence


@pytest.mark.long
@pytest.mark.parametrize("case", ALONE)
def test_the_class_of_a_failure_of_torch_is_found(of_torch: dict[str, Logs], case: str) -> None:
    cause = _find(of_torch[case])
    assert cause.kind == case.partition(".")[0]
    assert cause.rank == BEGAN.get(case, cause.rank)


@pytest.mark.long
@pytest.mark.parametrize("case", ["script-error.first-rank", "host-out-of-memory.second-rank"])
def test_the_rank_that_lost_its_connection_is_not_the_cause(of_torch: dict[str, Logs], case: str) -> None:
    cause = _find(of_torch[case])
    assert cause.others == {str(1 - int(cause.rank)): "gloo-connection"}


@pytest.mark.long
def test_an_effect_of_a_silent_end_is_found_as_an_effect(of_torch: dict[str, Logs]) -> None:
    cause = _find(of_torch["gloo-connection"])
    assert (cause.kind, cause.level, cause.rank) == ("gloo-connection", "cascade", "1")


@pytest.mark.long
def test_healthy_ranks_with_frightening_words_have_no_cause(of_torch: dict[str, Logs]) -> None:
    logs = of_torch["healthy"]
    assert "CUDA out of memory" in "\n".join(logs["0"] + logs["1"])
    assert CLASSIFIER.find(logs, {}) is None


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in ALONE if case != "collective-timeout"])
def test_ranks_that_lost_their_connection_do_not_hide_a_failure(of_torch: dict[str, Logs], case: str) -> None:
    effect = of_torch["gloo-connection"]["1"]
    cause = _find({"0": effect, "1": effect, **{f"{name}0": log for name, log in of_torch[case].items()}})
    assert cause.kind == case.partition(".")[0]

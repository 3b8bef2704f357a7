"""A certificate is of the launcher that the workspace uses, unless the user asks for processes that it cannot start."""

import pytest

from m5ws.config.settings import RunSettings
from m5ws.reproduce import certify
from m5ws.runs.run import RunOptions


@pytest.mark.parametrize(
    ("setting", "wanted", "nproc", "trainer", "count"),
    [
        ("torchrun", None, None, "torchrun", 4),
        ("torchrun", None, 2, "torchrun", 2),
        ("deepspeed", None, None, "deepspeed", 4),
        ("python", None, None, "python", 1),
        ("python", None, 2, "torchrun", 2),
        ("torchrun", "python", None, "python", 1),
        ("python", "deepspeed", None, "deepspeed", 4),
    ],
)
def test_the_launcher_of_a_certificate(
    setting: str, wanted: str | None, nproc: int | None, trainer: str, count: int
) -> None:
    options = RunOptions(trainer=wanted, nproc=nproc)  # type: ignore[arg-type]
    settings = RunSettings(trainer=setting, nproc=4)  # type: ignore[arg-type]
    chosen = certify.choose_launcher(settings, options, options.trainer)
    assert (chosen.trainer, chosen.nproc) == (trainer, count)

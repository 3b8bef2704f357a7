"""The choice between a container that m5ws starts and the container in which m5ws runs."""

import itertools
from pathlib import Path

import pytest

from m5ws.containers import engines
from m5ws.containers.engines import APPTAINER, DOCKER, PODMAN, EngineError, NoEngine

_IMAGE, _OTHER = (f"registry.example.org/train@sha256:{digit * 64}" for digit in "ab")


@pytest.mark.parametrize(
    ("pinned", "engine", "variable"),
    list(itertools.product((_IMAGE, None), (PODMAN, DOCKER, APPTAINER, None), (_IMAGE, _OTHER, None))),
)
def test_an_engine_is_preferred_to_a_variable(
    tmp_path: Path, pinned: str | None, engine: str | None, variable: str | None
) -> None:
    if engine is not None:
        (tmp_path / engine).write_text("#!/bin/sh\necho 1.0\n")
        (tmp_path / engine).chmod(0o755)
    environment = {"PATH": str(tmp_path)} | ({"M5WS_CONTAINER_IMAGE": variable} if variable else {})
    if pinned is None:
        assert engines.image_to_start(pinned, environment) is None
    elif engine in (PODMAN, DOCKER):
        assert engines.image_to_start(pinned, environment) == pinned
    elif engine is None and variable == pinned:
        assert engines.image_to_start(pinned, environment) is None
    else:
        with pytest.raises(NoEngine if engine is None else EngineError, match=_IMAGE) as refused:
            engines.image_to_start(pinned, environment)
        assert f"M5WS_CONTAINER_IMAGE={_IMAGE}" in refused.value.hint

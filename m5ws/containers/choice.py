"""The choice between a container that m5ws starts, and the container in which m5ws runs."""

from collections.abc import Mapping

from m5ws.containers import engines
from m5ws.containers.engines import APPTAINER, EngineError, NoEngine
from m5ws.environment.observe.hardware import IMAGE_VARIABLE

_INSIDE = (
    "Or run m5ws inside of the image: start the image by other means, with {variable}={image} set in the container."
)


def image_to_start(pinned: str | None, environment: Mapping[str, str]) -> str | None:
    """Return the image in which m5ws starts the ranks: the pinned image. None if no image is pinned.

    Without an engine that answers, IMAGE_VARIABLE states that this process runs in the image. Then m5ws starts no
    container. An engine is preferred, because anybody can set a variable. Raises NoEngine, EngineError.
    """
    if pinned is None:
        return None
    inside = _INSIDE.format(variable=IMAGE_VARIABLE, image=pinned)
    try:
        engine = engines.answering(environment)
    except NoEngine as error:
        if environment.get(IMAGE_VARIABLE) == pinned:
            return None
        raise NoEngine(
            f"the snapshot pins the image {pinned} ([environment] image), and {error}", hint=f"{error.hint} {inside}"
        ) from error
    if engine.name == APPTAINER:
        raise EngineError(
            f"the snapshot pins the image {pinned}, and only Apptainer answers here, which m5ws does not start",
            hint=f"Install Podman. {inside}",
        )
    return pinned

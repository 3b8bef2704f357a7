"""Container engines on this machine: Podman, Docker and Apptainer, each by its own program.

An engine is used if it answers. Podman has no server and answers by itself. Docker's program without its server does
not answer. Digests come from the engine alone, never from a variable or from a name.

Sources: https://docs.podman.io/en/latest/Commands.html, https://docs.docker.com/reference/cli/docker/,
https://apptainer.org/docs/user/latest/cli.html.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from m5ws.environment.observe.hardware import IMAGE_VARIABLE
from m5ws.errors import M5Error

PODMAN, DOCKER, APPTAINER = "podman", "docker", "apptainer"
_ASKS = {
    PODMAN: ("info", "--format", "{{.Version.Version}}"),
    DOCKER: ("version", "--format", "{{.Server.Version}}"),
    APPTAINER: ("version",),
}
"""Arguments with which each engine prints its version if it can start containers, in order of preference."""
_INSIDE = (
    "Or run m5ws inside of the image: start the image by other means, with {variable}={image} set in the container."
)
_TIMEOUT_S = 60.0
"""The longest wait for an answer. A pull has no limit, because an image may have many gigabytes."""


class NoEngine(M5Error):
    """No container engine answers on this machine."""

    exit_code = 3


class EngineError(M5Error):
    """A container engine refused a request. The message has the engine's own words."""

    exit_code = 3


@dataclass(frozen=True)
class Engine:
    """A container engine that has answered: its name, the path of its program, and its version.

    `environment` has the variables of all its commands, such as CONTAINERS_CONF and DOCKER_HOST.
    """

    name: str
    program: str
    version: str
    environment: Mapping[str, str] = field(repr=False)


def answers(environment: Mapping[str, str]) -> dict[str, Engine | str]:
    """Return the engines on PATH by name. An engine that does not answer has its error instead."""
    path = environment.get("PATH", os.defpath)
    programs = {name: shutil.which(name, path=path) for name in _ASKS}
    return {name: _ask(name, program, environment) for name, program in programs.items() if program is not None}


def answering(environment: Mapping[str, str]) -> Engine:
    """Return the first engine that answers: Podman, Docker or Apptainer. Raises NoEngine with the error of each."""
    found = answers(environment)
    for answer in found.values():
        if isinstance(answer, Engine):
            return answer
    lines = [f"{name}: {found.get(name, 'not on PATH')}" for name in _ASKS]
    raise NoEngine(
        "no container engine answers on this machine\n" + "\n".join(lines),
        hint="Install Podman (`apt-get install podman`), or start Docker's server. `m5ws doctor` lists the engines "
        "that answer.",
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
        engine = answering(environment)
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


def digest(engine: Engine, image: str) -> str:
    """Return an image by digest, NAME@sha256:…, as the engine names it. The engine pulls an image that it lacks.

    Of several digests of the same image, one for all platforms and one for this platform, the result is the first in
    order. Raises EngineError.
    """
    names = digests(engine, image)
    repository = _repository(image)
    same = [name for name in names if f"/{_repository(name)}".endswith(f"/{repository}")]
    return (same or names)[0]


def digests(engine: Engine, image: str) -> list[str]:
    """Return all names by digest of an image, in order. The engine pulls an image that it lacks. Raises EngineError."""
    if engine.name == APPTAINER:
        raise EngineError(
            f"apptainer prints no digest of {image}",
            hint="Name the image by digest, NAME@sha256:…. Its registry shows the digest, and so does "
            f"`skopeo inspect --format '{{{{.Name}}}}@{{{{.Digest}}}}' docker://{image}`.",
        )
    if _run(engine, "image", "inspect", image).returncode != 0:
        ask(engine, "pull", "--quiet", image, timeout_s=None)
    return _digests(engine, image)


def started_digest(engine: Engine, container: str) -> str:
    """Return the digest of the image of a started container, sha256:…. Raises EngineError.

    An image can have a digest for all platforms and another for this platform. The result is the digest by which the
    container was started, if the engine lists it for this image, else the first in order.
    """
    name, image = json.loads(ask(engine, "inspect", "--format", _STARTED, "--type", "container", container))
    known = [by_digest.partition("@")[2] for by_digest in _digests(engine, image)]
    requested = name.partition("@")[2]
    return requested if requested in known else known[0]


_STARTED = "[{{json .Config.Image}}, {{json .Image}}]"
"""Format of the name by which a container was started, and the id of its image, for Podman and Docker."""


def ask(engine: Engine, *words: str, timeout_s: float | None = _TIMEOUT_S) -> str:
    """Return the output of a command of the engine. Raises EngineError with the engine's error."""
    done = _run(engine, *words, timeout_s=timeout_s)
    if done.returncode != 0:
        raise EngineError(f"`{engine.name} {' '.join(words)}` failed: {_error(done)}")
    return done.stdout.strip()


def _digests(engine: Engine, image: str) -> list[str]:
    names: list[str] = sorted(json.loads(ask(engine, "image", "inspect", "--format", "{{json .RepoDigests}}", image)))
    if not names:
        raise EngineError(
            f"{engine.name} has no digest of the image {image}",
            hint="Docker gives an image a digest when it is pushed or pulled. Push the image to a registry.",
        )
    return names


def _repository(image: str) -> str:
    """Return the name of an image without tag and digest. The last `:` of HOST:PORT/NAME begins no tag."""
    name = image.partition("@")[0]
    head, _, tail = name.rpartition(":")
    return name if not head or "/" in tail else head


def _ask(name: str, program: str, environment: Mapping[str, str]) -> Engine | str:
    engine = Engine(name, program, "", environment)
    try:
        done = _run(engine, *_ASKS[name])
    except EngineError as error:
        return str(error)
    version = done.stdout.strip()
    return Engine(name, program, version, environment) if done.returncode == 0 and version else _error(done)


def _run(engine: Engine, *words: str, timeout_s: float | None = _TIMEOUT_S) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            [engine.program, *words],
            env=dict(engine.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"`{engine.name} {' '.join(words)}` gave no answer in {timeout_s:.0f} s") from error
    except OSError as error:
        raise EngineError(f"{engine.program} could not be started: {error}") from error


def _error(done: "subprocess.CompletedProcess[str]") -> str:
    return done.stderr.strip() or f"exit status {done.returncode}, without a message"

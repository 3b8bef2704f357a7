"""The container around this process, if m5ws did not start it: its runtime and its image, each with its source.

A runtime states the image in a file that it mounts, or by an endpoint. Any process can set a variable, so an image that
only a variable names is recorded as `container.image.unverified`, and never as `container.image`. A request without an
answer is an absent fact: it must not stop a snapshot.

Sources: https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-metadata-endpoint-v4.html,
https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/, https://apptainer.org/docs/user/main/appendix.html,
https://docs.podman.io/en/latest/markdown/podman-run.1.html, https://github.com/NVIDIA/pyxis.
"""

import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from m5ws.environment.observe.hardware import IMAGE_VARIABLE, Facts, text

_LIMIT_S = 2.0
_MOUNTS, _GROUPS = "proc/self/mountinfo", "proc/self/cgroup"
_MARKS = (
    ("kubernetes", _MOUNTS, r"/pods/[0-9a-f-]{32,36}/\S* /etc/hosts "),
    ("kubernetes", _GROUPS, r"kubepods"),
    ("podman", _MOUNTS, r" /run/\.containerenv "),
    ("docker", _MOUNTS, r"/containers/[0-9a-f]{64}/\S+ /etc/(?:hosts|hostname|resolv\.conf) "),
    ("docker", _GROUPS, r"/docker[/-][0-9a-f]{64}"),
    ("apptainer", ".singularity.d/runscript", r""),
    *((name, _GROUPS, name) for name in ("containerd", "lxc", "enroot")),
)
"""Runtimes, and text in a file of each. Docker's `/.dockerenv` also stays in a copy of an image, so it is no mark."""
_ECS = "ECS_CONTAINER_METADATA_URI_V4"
_SIF = {"APPTAINER_CONTAINER": "apptainer", "SINGULARITY_CONTAINER": "apptainer"}
_VARIABLES = {_ECS: "ecs", **_SIF, "PYXIS_VERSION": "enroot", "KUBERNETES_SERVICE_HOST": "kubernetes"}


class Image(NamedTuple):
    """The image that a runtime states: its name, the digest of its configuration, and the source of both."""

    runtime: str
    name: str | None
    id: str | None
    source: str


def facts(system: Path, environment: Mapping[str, str]) -> Facts:
    """Return the facts about the container; all None outside of one."""
    image = _stated_image(system, environment)
    runtime, mark = (image.runtime, image.source) if image else _runtime(system, environment)
    variable, claim = _claimed_image(environment)
    return {
        "container": runtime,
        "container.source": mark,
        "container.image": image and image.name,
        "container.image_id": image and image.id,
        "container.image.source": image.source if image and image.name else variable,
        "container.image.unverified": claim,
    }


def _stated_image(system: Path, environment: Mapping[str, str]) -> Image | None:
    """Return the image that the runtime states; None if it states none, and outside of a container."""
    reads = partial(_of_ecs, environment), partial(_of_kubernetes, system, environment), partial(_of_podman, system)
    for read in reads:
        # A server that does not answer, or answers in another form, states no image.
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            if (image := read()) is not None:
                return image
    return None


def _of_ecs(environment: Mapping[str, str]) -> Image | None:
    """Return the image from the metadata endpoint of ECS, which AWS Batch has too.

    The endpoint has a link-local address, where only the host listens; any other address is the value of a variable.
    """
    url = urlsplit(environment.get(_ECS, ""))
    if not ipaddress.ip_address(url.hostname or "").is_link_local:
        return None
    answer = _get(str(url.hostname), url.port or 80, url.path)
    return Image("ecs", str(answer["Image"]), str(answer["ImageID"]), "the metadata endpoint of ECS")


def _of_kubernetes(system: Path, environment: Mapping[str, str]) -> Image | None:
    """Return the image of this pod from the API, if the pod's service account may get its own pod.

    The API proves itself by its certificate, so no variable can lead to another server. In a pod with several images,
    the image of this container is unknown.
    """
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), int(environment.get("KUBERNETES_SERVICE_PORT", "443"))
    account, pod = system / "var/run/secrets/kubernetes.io/serviceaccount", text(system / "etc/hostname")
    token, namespace = text(account / "token"), text(account / "namespace")
    if not (host and token and namespace and pod):
        return None
    import ssl

    path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}"
    answer = _get(host, port, path, token, ssl.create_default_context(cafile=account / "ca.crt"))
    statuses = answer["status"]["containerStatuses"]
    (image,) = {status["imageID"].rpartition("://")[2] for status in statuses}
    # An image that was never in a registry has no name: its digest is of its configuration.
    name, digest = (image, None) if "@" in image else (None, image or None)
    return Image("kubernetes", name, digest, f"the API of Kubernetes, pod {pod}")


def _of_podman(system: Path) -> Image | None:
    """Return the image from the file that Podman mounts. Only a privileged container's file has content."""
    mounted = " /run/.containerenv " in (text(system / _MOUNTS) or "")
    content = (text(system / "run/.containerenv") or "") if mounted else ""
    values = dict(re.findall(r'^(image|imageid)="([^"]+)"', content, re.MULTILINE))
    return Image("podman", values.get("image"), values.get("imageid"), "/run/.containerenv") if values else None


def _runtime(system: Path, environment: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the runtime of this container, and the source of its name."""
    for runtime, file, pattern in _MARKS:
        content = text(system / file)
        if content is not None and re.search(pattern, content):
            return runtime, f"/{file}"
    names = ((runtime, f"{name}, unverified") for name, runtime in _VARIABLES.items() if environment.get(name))
    return next(names, (None, None))


def _claimed_image(environment: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the variable that names an image, and the image. The image file of Apptainer is named by its SHA-256."""
    for variable in (IMAGE_VARIABLE, "PYXIS_CONTAINER_IMAGE", *_SIF):
        if image := environment.get(variable):
            if variable in _SIF:
                # A sandbox is a folder, which has no digest.
                with suppress(OSError), open(image, "rb") as file:
                    image = f"{Path(image).name}@sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
            return f"{variable}, unverified", image
    return None, None


def _get(host: str, port: int, path: str, token: str = "", tls: Any = None) -> Any:
    """Return the answer to a GET request as JSON, without a proxy or a redirect; None without a valid answer."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    kind = partial(HTTPSConnection, context=tls) if tls else HTTPConnection
    with closing(kind(host, port, timeout=_LIMIT_S)) as connection, suppress(HTTPException):
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return json.loads(answer.read(2**22)) if answer.status == 200 else None
    return None

"""Facts about a container that m5ws did not start: files of runtimes, and servers in place of ECS and Kubernetes."""

import hashlib
import http.server
import json
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from m5ws.environment.observe import container
from tests.support.paths import ROOT
from tests.support.workspace.checkouts import write

DIGEST = "sha256:" + "0123456789abcdef" * 4
IMAGE = f"registry/train@{DIGEST}"
OTHER = f"registry/train@sha256:{'f' * 64}"
ID = "9c" * 32


def unverified(variable: str) -> str:
    return f"{variable}, unverified"


# --- runtimes ------------------------------------------------------------------------------------------------------


def mount(root: str, place: str) -> str:
    """Return a line of /proc/self/mountinfo (proc_pid_mountinfo(5))."""
    return f"36 35 98:0 {root} {place} rw,noatime - ext4 /dev/root rw\n"


_ETC_HOSTS = "/etc/hosts"
_MOUNTS = [
    ("kubernetes", mount("/var/lib/kubelet/pods/0f8fad5b-d9cb-469f-a165-70867728950e/etc-hosts", _ETC_HOSTS)),
    ("docker", mount(f"/var/lib/docker/containers/{ID}/hosts", _ETC_HOSTS)),
    ("docker", mount(f"/containers/{ID}/hostname", "/etc/hostname")),
    ("podman", mount(f"/containers/overlay-containers/{ID}/userdata/.containerenv", "/run/.containerenv")),
    # The mounts of a host on which containers run, and of CRI-O, which mounts Podman's file too.
    (None, mount("/", f"/var/lib/docker/overlay2/{ID}/merged") + mount("/", f"/var/lib/docker/containers/{ID}/mounts")),
    (
        "kubernetes",
        mount("/a/.containerenv", "/run/.containerenv") + mount(f"/kubelet/pods/{'ab' * 16}/etc-hosts", _ETC_HOSTS),
    ),
]


@pytest.mark.parametrize(("runtime", "mounts"), _MOUNTS)
def test_a_mount_of_the_runtime_identifies_it(tmp_path: Path, runtime: str | None, mounts: str) -> None:
    write(tmp_path, {"proc/self/mountinfo": mount("/", "/") + mounts})
    facts = container.facts(tmp_path, {})
    assert (facts["container"], facts["container.source"]) == (runtime, runtime and "/proc/self/mountinfo")


@pytest.mark.parametrize(
    ("runtime", "group"),
    [
        ("kubernetes", "/kubepods/burstable/pod1/2"),
        ("docker", f"/docker/{ID}"),
        ("docker", f"/system.slice/docker-{ID}.scope"),
        ("lxc", "/lxc/x"),
        (None, "/system.slice/docker.service"),
        (None, "/user.slice/user-1000.slice/session-2.scope"),
    ],
)
def test_a_control_group_identifies_the_runtime(tmp_path: Path, runtime: str | None, group: str) -> None:
    write(tmp_path, {"proc/self/cgroup": f"0::{group}\n"})
    facts = container.facts(tmp_path, {})
    assert (facts["container"], facts["container.source"]) == (runtime, runtime and "/proc/self/cgroup")


def test_a_file_that_stays_in_copies_of_an_image_is_no_mark_of_docker(tmp_path: Path) -> None:
    write(tmp_path, {".dockerenv": "", "run/.containerenv": f'image="{IMAGE}"\nimageid="{ID}"\n'})
    assert set(container.facts(tmp_path, {}).values()) == {None}


_VARIABLES = {
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "apptainer",
    "PYXIS_VERSION": "enroot",
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "ECS_CONTAINER_METADATA_URI_V4": "ecs",
}


@pytest.mark.parametrize(("variable", "runtime"), _VARIABLES.items())
def test_a_runtime_that_only_a_variable_names_is_unverified(tmp_path: Path, variable: str, runtime: str) -> None:
    facts = container.facts(tmp_path, {variable: "/nowhere"})
    assert (facts["container"], facts["container.source"]) == (runtime, unverified(variable))
    write(tmp_path, {"proc/self/mountinfo": _MOUNTS[1][1]})
    assert container.facts(tmp_path, {variable: "/nowhere"})["container"] == "docker"


# --- images --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["M5WS_CONTAINER_IMAGE", "PYXIS_CONTAINER_IMAGE"])
def test_an_image_that_only_a_variable_names_is_unverified(tmp_path: Path, variable: str) -> None:
    facts = container.facts(tmp_path, {variable: IMAGE})
    assert facts["container.image"] is None
    assert facts["container.image.unverified"] == IMAGE
    assert facts["container.image.source"] == unverified(variable)


@pytest.mark.parametrize("variable", ["APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"])
def test_the_image_file_of_apptainer_is_named_by_its_digest_and_unverified(tmp_path: Path, variable: str) -> None:
    content = b"SIF" * 100_000
    write(tmp_path, {"train.sif": content, ".singularity.d/runscript": "#!/bin/sh\n"})
    facts = container.facts(tmp_path, {variable: str(tmp_path / "train.sif")})
    assert (facts["container"], facts["container.source"]) == ("apptainer", "/.singularity.d/runscript")
    assert facts["container.image.unverified"] == f"train.sif@sha256:{hashlib.sha256(content).hexdigest()}"
    assert facts["container.image"] is None and facts["container.image.source"] == unverified(variable)
    for path in (tmp_path / "absent.sif", tmp_path):
        assert container.facts(tmp_path, {variable: str(path)})["container.image.unverified"] == str(path)


def podman(root: Path, content: str) -> Path:
    write(root, {"run/.containerenv": content, "proc/self/mountinfo": _MOUNTS[3][1]})
    return root


def test_podman_states_the_image_in_the_file_that_it_mounts(tmp_path: Path) -> None:
    root = podman(tmp_path, f'engine="podman-4.3.1"\nimage="{IMAGE}"\nimageid="{ID}"\n')
    facts = container.facts(root, {"M5WS_CONTAINER_IMAGE": OTHER})
    assert facts == {
        "container": "podman",
        "container.source": "/run/.containerenv",
        "container.image": IMAGE,
        "container.image_id": ID,
        "container.image.source": "/run/.containerenv",
        "container.image.unverified": OTHER,
    }
    assert container.facts(podman(tmp_path, ""), {})["container.image"] is None


# --- servers -------------------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """A request that a server received: its path, and its header `Authorization`."""

    path: str
    authorization: str | None


class _Server(http.server.ThreadingHTTPServer):
    content: bytes = b""
    status: int = 200
    requests: list[Request]

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.requests.append(Request(self.path, self.headers["Authorization"]))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()
        self.wfile.write(self.server.content)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(address: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Iterator[_Server]:
    """Serve one answer to each request. The tests set it."""
    server = _Server((address, 0), _Handler)
    server.requests = []
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Certified(NamedTuple):
    """A certificate for 127.0.0.1, signed by itself, and the context of a server that has it."""

    authority: Path
    context: ssl.SSLContext


def certified(folder: Path) -> Certified:
    folder.mkdir(exist_ok=True)
    words = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=api"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{folder}/key", "-out", f"{folder}/ca.crt"]
    subprocess.run(["openssl", "req", "-x509", *words, *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "key")
    return Certified(folder / "ca.crt", context)


class Pod:
    """The files of a pod's service account, and the API that its variables name."""

    def __init__(self, system: Path, authority: Path, server: _Server) -> None:
        account = "var/run/secrets/kubernetes.io/serviceaccount"
        files: dict[str, str | bytes] = {"token": "secret\n", "namespace": "team", "ca.crt": authority.read_bytes()}
        files = {f"{account}/{name}": content for name, content in files.items()}
        write(system, files | {"etc/hostname": "train-0\n"})
        self.server = server
        self._system = system
        self.environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}

    def facts(self, answer: Any, status: int = 200) -> dict[str, str | None]:
        self.server.content, self.server.status = json.dumps(answer).encode(), status
        return container.facts(self._system, self.environment | {"M5WS_CONTAINER_IMAGE": OTHER})


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    folder = tmp_path_factory.mktemp("pod")
    authority, context = certified(folder / "tls")
    with serving(tls=context) as server:
        yield Pod(folder, authority, server)


def statuses(*images: str) -> dict[str, Any]:
    return {"kind": "Pod", "status": {"containerStatuses": [{"name": "c", "imageID": image} for image in images]}}


@pytest.mark.parametrize(
    ("images", "name", "image_id"),
    [
        ([IMAGE], IMAGE, None),
        ([f"docker-pullable://{IMAGE}"], IMAGE, None),
        ([IMAGE, IMAGE], IMAGE, None),
        ([DIGEST], None, DIGEST),
    ],
)
def test_the_api_of_kubernetes_states_the_image_of_the_pod(
    api: Pod, images: list[str], name: str | None, image_id: str | None
) -> None:
    facts = api.facts(statuses(*images))
    assert api.server.requests[-1] == Request("/api/v1/namespaces/team/pods/train-0", "Bearer secret")
    assert (facts["container"], facts["container.image"], facts["container.image_id"]) == ("kubernetes", name, image_id)
    assert facts["container.source"] == "the API of Kubernetes, pod train-0"
    assert facts["container.image.source"] == (
        facts["container.source"] if name else unverified("M5WS_CONTAINER_IMAGE")
    )
    assert facts["container.image.unverified"] == OTHER


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (statuses(IMAGE), 403),
        (statuses(IMAGE), 302),
        (statuses(IMAGE, OTHER), 200),
        (statuses(), 200),
        (statuses(""), 200),
        ({"status": {"containerStatuses": [{"imageID": 1}]}}, 200),
        ({"status": {"containerStatuses": 7}}, 200),
        ({"status": None}, 200),
        ([], 200),
        (None, 200),
        ("text", 200),
    ],
)
def test_an_api_that_does_not_state_one_image_leaves_the_image_unverified(api: Pod, answer: Any, status: int) -> None:
    facts = api.facts(answer, status)
    assert (facts["container.image"], facts["container.image_id"]) == (None, None)
    assert facts["container.image.source"] == unverified("M5WS_CONTAINER_IMAGE")


def test_the_token_goes_to_no_server_without_the_certificate_of_the_cluster(tmp_path: Path) -> None:
    stranger, own = certified(tmp_path / "stranger"), certified(tmp_path / "own")
    with serving(tls=stranger.context) as server:
        facts = Pod(tmp_path, own.authority, server).facts(statuses(IMAGE))
        assert facts["container.image"] is None and server.requests == []
    # The server has gone, and so has the certificate.
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
    assert container.facts(tmp_path, environment)["container.image"] is None
    shutil.rmtree(tmp_path / "var")
    assert container.facts(tmp_path, environment)["container.image"] is None


_METADATA = {"DockerId": ID, "Name": "train", "Image": IMAGE, "ImageID": DIGEST, "Labels": {}}
_IN_NAMESPACE = """\
import json, sys
from pathlib import Path
from m5ws.environment.observe import container
from tests.environment.test_container import serving
with serving("169.254.170.2") as server:
    for content, status in json.loads(sys.argv[1]):
        server.content, server.status = content.encode(), status
        url = f"http://169.254.170.2:{server.port}/v4/abc"
        print(json.dumps(container.facts(Path("/nowhere"), {"ECS_CONTAINER_METADATA_URI_V4": url})))
    assert {request.path for request in server.requests} == {"/v4/abc"}
"""


def test_the_metadata_endpoint_of_ecs_states_the_image(tmp_path: Path) -> None:
    answers = [(json.dumps(_METADATA), 200), (json.dumps(_METADATA), 404), ("{", 200), ("[]", 200), ("{}", 200)]
    inside = 'ip link set lo up && ip addr add 169.254.170.2/32 dev lo && exec "$@"'
    words = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", inside, "sh"]
    possible = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if possible.returncode != 0:
        pytest.skip(f"no network namespace with a link-local address: {possible.stderr.strip()}")
    done = subprocess.run(
        [*words, sys.executable, "-c", _IN_NAMESPACE, json.dumps(answers)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    stated, *others = map(json.loads, done.stdout.splitlines())
    assert (stated["container"], stated["container.image"], stated["container.image_id"]) == ("ecs", IMAGE, DIGEST)
    assert stated["container.source"] == stated["container.image.source"] == "the metadata endpoint of ECS"
    assert len(others) == 4
    for facts in others:
        assert facts["container.image"] is None
        assert facts["container.source"] == unverified("ECS_CONTAINER_METADATA_URI_V4")


def test_an_endpoint_at_another_address_than_the_host_gets_no_request(tmp_path: Path) -> None:
    with serving() as server:
        server.content = json.dumps(_METADATA).encode()
        for host in ("127.0.0.1", "localhost"):
            url = f"http://{host}:{server.port}/v4/abc"
            facts = container.facts(tmp_path, {"ECS_CONTAINER_METADATA_URI_V4": url})
            assert (facts["container"], facts["container.image"]) == ("ecs", None)
        assert server.requests == []
    for url in ("http://[", "text", "http://169.254.170.2:x/"):
        assert container.facts(tmp_path, {"ECS_CONTAINER_METADATA_URI_V4": url})["container.image"] is None

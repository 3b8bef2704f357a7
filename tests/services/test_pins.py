"""`m5ws pin --image` and the facts of a container, by a real Podman as root, without a registry."""

import subprocess
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from m5ws.cli import main
from m5ws.environment.observe import container
from tests.support.machine.podman import usable
from tests.support.workspace.checkouts import write

pytestmark = pytest.mark.services

_TAG = "localhost/m5/pinned:v1"


def podman(*words: str) -> str:
    done = subprocess.run(["podman", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module", autouse=True)
def _storage() -> Iterator[None]:
    with usable() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def import_image(folder: Path, content: str) -> None:
    """Move the tag to an image with `cat`, its libraries, and a file with `content`."""
    (folder / "content").write_text(content)
    lines = subprocess.run(["ldd", "/bin/cat"], capture_output=True, text=True, check=True).stdout.split()
    with tarfile.open(folder / "image.tar", "w", dereference=True) as archive:
        archive.add(folder / "content", "content")
        for path in {"/bin/cat", *(word for word in lines if word.startswith("/"))}:
            archive.add(path, path)
    podman("import", "--quiet", str(folder / "image.tar"), _TAG)


def pinned(folder: Path) -> str:
    return str(tomllib.loads((folder / "m5ws.toml").read_text())["environment"]["image"])


def test_a_tag_is_pinned_and_its_move_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"m5ws.toml": "# mine\n[mlflow]\nenabled = false\n"})
    import_image(tmp_path, "one")
    assert main(["-C", str(tmp_path), "pin", "--image", _TAG]) == 0
    first = pinned(tmp_path)
    assert podman("run", "--rm", "--network", "none", first, "/bin/cat", "/content") == "one"
    import_image(tmp_path, "two")
    capsys.readouterr()
    assert main(["-C", str(tmp_path), "pin", "--image", _TAG]) == 0
    second = pinned(tmp_path)
    name, _, old = first.partition("@")
    new = second.partition("@")[2]
    assert old != new and capsys.readouterr().err == f"{name} was {old}, is {new}\n"
    assert podman("run", "--rm", "--network", "none", second, "/bin/cat", "/content") == "two"
    assert (tmp_path / "m5ws.toml").read_text().startswith("# mine\n[mlflow]\nenabled = false\n")


@pytest.mark.parametrize("privileged", [True, False])
def test_podman_states_the_image_of_a_privileged_container(tmp_path: Path, privileged: bool) -> None:
    import_image(tmp_path, "one")
    (digest,) = podman("image", "inspect", "--format", "{{range .RepoDigests}}{{.}} {{end}}", _TAG).split()
    seen = tmp_path / "seen"
    for file in ("run/.containerenv", "proc/self/mountinfo"):
        options = ["--rm", "--network", "none", *(["--privileged"] if privileged else [])]
        write(seen, {file: podman("run", *options, digest, "/bin/cat", f"/{file}") + "\n"})
    facts = container.facts(seen, {})
    assert facts["container"] == "podman"
    assert facts["container.image"] == (digest if privileged else None)
    assert (facts["container.image_id"] is None) is not privileged

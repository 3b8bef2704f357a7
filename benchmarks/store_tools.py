"""The tools that `benchmarks/store.py` compares, each by its own command line, on one S3 server.

A tool uploads the folder `data` of its own directory and downloads it elsewhere. Its caches lie in that directory too;
a download begins without a cache. `raw` is no tool: the same bytes by the fastest client, unnamed and unhashed.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Server:
    """An S3 server and its credentials. `authority`: file of its certificate authority, if it uses TLS."""

    def __init__(
        self, endpoint: str, bucket: str, access_key: str, secret_key: str, authority: str | None = None
    ) -> None:
        self.endpoint, self.bucket, self.authority = endpoint, bucket, authority
        self._keys = access_key, secret_key
        self.environment = {
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
            **({"AWS_CA_BUNDLE": authority} if authority else {}),
        }

    def at(self, endpoint: str) -> "Server":
        """Return the same server at another endpoint."""
        return Server(endpoint, self.bucket, *self._keys, self.authority)


class Tool(Protocol):
    """`place` holds the folder `data`."""

    def prepare(self) -> None:
        """Prepare the tool once; this is not measured."""

    def upload(self) -> None:
        """Upload the present content of `data`, durably."""

    def materialise(self, target: Path) -> None:
        """Download `data` below `target`, which is new, without a cache."""


def call(command: list[str], cwd: Path, environment: Mapping[str, str]) -> str:
    """Run a command to its end and return its output. Raises RuntimeError with all output."""
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


class M5ws:
    """`m5ws snapshot` of a data folder, and `m5ws checkout`."""

    def __init__(self, place: Path, server: Server, prefix: str) -> None:
        self._place, self._server = place, server
        self._url = f"s3://{server.bucket}/{prefix}"
        self._snapshot = ""
        self._environment = {**server.environment, "XDG_CACHE_HOME": str(place / "cache")}

    def prepare(self) -> None:
        """Create the store, which checks the server, and a snapshot of no data, which observes this machine."""
        call(["git", "init", "-q"], self._place, {})
        (self._place / ".gitignore").write_text("/data/\n/back/\n/.m5ws/\n/cache/\n")
        store = ["--store", self._url, "--endpoint-url", self._server.endpoint, "--region", "us-east-1"]
        self._m5ws("init", *store)
        self._m5ws("snapshot")
        configuration = self._place / "m5ws.toml"
        text = _with_line(configuration.read_text(), "data", 'paths = ["data"]')
        if self._server.endpoint.startswith("https:"):
            # As with AWS: TLS protects the bytes in transit, and a CRC is cheaper than a signature of them.
            text = _with_line(text, "store", 'integrity = "crc64nvme"')
        configuration.write_text(self._set(text))
        call(["git", "add", "."], self._place, {})
        call(["git", "-c", "user.name=b", "-c", "user.email=b@example.org", "commit", "-qm", "all"], self._place, {})

    def _set(self, text: str) -> str:
        return text

    def upload(self) -> None:
        self._snapshot = self._m5ws("snapshot").strip()

    def materialise(self, target: Path) -> None:
        # The observed environment stays cached; objects do not.
        shutil.rmtree(self._place / "cache" / "m5ws" / "objects", ignore_errors=True)
        self._m5ws("checkout", self._snapshot, str(target))

    def _m5ws(self, *words: str) -> str:
        return call([str(Path(sys.executable).with_name("m5ws")), *words], self._place, self._environment)


class M5wsWithoutCache(M5ws):
    """m5ws without a local cache: restic keeps no data in its cache either."""

    def _set(self, text: str) -> str:
        return _with_line(text, "store", "cache_limit = 0")


def _with_line(text: str, section: str, line: str) -> str:
    """Return an m5ws.toml with one more line in a section."""
    head = f"\n[{section}]\n"
    assert head in text
    return text.replace(head, f"{head}{line}\n", 1)


class Dvc:
    """`dvc add` and `dvc push`; `dvc pull` with no cache."""

    def __init__(self, place: Path, server: Server, prefix: str, program: str) -> None:
        self._place, self._server, self._prefix, self._program = place, server, prefix, program
        self._environment = {**server.environment, "DVC_NO_ANALYTICS": "1"}

    def prepare(self) -> None:
        self._dvc("init", "--no-scm", "-q")
        self._dvc("remote", "add", "-d", "team", f"s3://{self._server.bucket}/{self._prefix}")
        self._dvc("remote", "modify", "team", "endpointurl", self._server.endpoint)
        if self._server.authority:
            self._dvc("remote", "modify", "team", "ssl_verify", self._server.authority)

    def upload(self) -> None:
        self._dvc("add", "-q", "data")
        self._dvc("push", "-q")

    def materialise(self, target: Path) -> None:
        target.mkdir()
        shutil.copytree(self._place / ".dvc", target / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp"))
        shutil.copy(self._place / "data.dvc", target)
        call([self._program, "pull", "-q"], target, self._environment)

    def _dvc(self, *words: str) -> None:
        call([self._program, *words], self._place, self._environment)


class Restic:
    """`restic backup` and `restic restore`."""

    def __init__(self, place: Path, server: Server, prefix: str, program: str) -> None:
        self._place, self._program = place, program
        self._environment = {
            **server.environment,
            "RESTIC_REPOSITORY": f"s3:{server.endpoint}/{server.bucket}/{prefix}",
            "RESTIC_PASSWORD": "benchmark",
            "RESTIC_CACHE_DIR": str(place / "cache"),
            **({"SSL_CERT_FILE": server.authority} if server.authority else {}),
        }

    def prepare(self) -> None:
        call([self._program, "init"], self._place, self._environment)

    def upload(self) -> None:
        call([self._program, "backup", "-q", "data"], self._place, self._environment)

    def materialise(self, target: Path) -> None:
        shutil.rmtree(self._place / "cache", ignore_errors=True)
        words = [self._program, "restore", "-q", "latest", "--target", str(target)]
        call(words, self._place, self._environment)


class AwsSync:
    """Compares names, sizes and times, and hashes nothing."""

    def __init__(self, place: Path, server: Server, prefix: str, program: str) -> None:
        self._place, self._program, self._environment = place, program, server.environment
        self._url = f"s3://{server.bucket}/{prefix}"

    def prepare(self) -> None:
        pass

    def upload(self) -> None:
        call([self._program, "s3", "sync", "--only-show-errors", "data", self._url], self._place, self._environment)

    def materialise(self, target: Path) -> None:
        words = [self._program, "s3", "sync", "--only-show-errors", self._url, str(target)]
        call(words, self._place, self._environment)


class Raw:
    """The same bytes in objects of the same size, by obstore, in a process of its own; it has no no-op."""

    def __init__(self, place: Path, server: Server, prefix: str) -> None:
        self._place, self._environment = place, server.environment
        self._words = [sys.executable, str(Path(__file__).parent / "scripts" / "store_raw.py"), server.bucket, prefix]

    def prepare(self) -> None:
        pass

    def upload(self) -> None:
        call([*self._words, "put", str(self._place / "data")], self._place, self._environment)

    def materialise(self, target: Path) -> None:
        call([*self._words, "get", str(target)], self._place, self._environment)

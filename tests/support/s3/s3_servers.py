"""A light S3 server in its own process, and buckets on it."""

import contextlib
import functools
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.support.network import ports

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_DEFAULT_REGION": "eu-west-1",
}
_START_S = 30.0


class S3Server(msgspec.Struct, frozen=True):
    """The endpoint of a server, and the configuration of its clients."""

    endpoint: str

    def client(self, region: str = "eu-west-1") -> Any:
        """Return a boto3 client of the server, for the preparations of a test."""
        import boto3
        import botocore.config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=region,
            aws_access_key_id=ENVIRONMENT["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
            config=botocore.config.Config(s3={"addressing_style": "path"}),
        )

    def bucket(self, region: str = "eu-west-1", **options: Any) -> str:
        """Create a bucket in a region, and return its name."""
        name = f"bucket-{secrets.token_hex(6)}"
        where = {"LocationConstraint": region}
        self.client(region).create_bucket(Bucket=name, CreateBucketConfiguration=where, **options)
        return name

    def url(self, bucket: str, prefix: str = "team/store", **options: str) -> str:
        """Return the URL of a store."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"s3://{bucket}/{prefix}?endpoint_url={self.endpoint}" + (f"&{query}" if query else "")


@contextlib.contextmanager
def descriptions_read_once() -> Iterator[None]:
    """Share the loader of botocore's service descriptions between all sessions: reading them dominates client
    creation.
    """
    import botocore.session

    own = botocore.session.create_loader
    botocore.session.create_loader = functools.cache(own)
    try:
        yield
    finally:
        botocore.session.create_loader = own


@contextlib.contextmanager
def moto(log: Path, host: str = "127.0.0.1") -> Iterator[S3Server]:
    """Run moto's server at an address of this machine, with atomic conditional creates, until the context ends."""
    port = ports.free(host=host)
    command = [sys.executable, str(Path(__file__).with_name("moto_server.py")), str(port), host]
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        _wait(host, port, process, log)
        yield S3Server(f"http://{host}:{port}")
    finally:
        process.terminate()
        process.wait(10)


def _wait(host: str, port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until_s = time.monotonic() + _START_S
    while time.monotonic() < until_s:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the S3 server did not start:\n{log.read_text(errors='replace')[-2000:]}")

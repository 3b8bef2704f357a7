"""Real failures that need no torch. Each function ends with an exception or a signal, as scripts do."""

import argparse
import ctypes
import faulthandler
import gzip
import json
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _import_error() -> None:
    import a_package_that_is_missing  # type: ignore[import-not-found]  # noqa: F401


def _missing_name() -> None:
    from json import a_name_that_is_missing  # type: ignore[attr-defined]  # noqa: F401


def _missing_file() -> None:
    Path("data/train.bin").read_bytes()


def _missing_script() -> None:
    subprocess.run(["python3", "missing.py"], check=False)


def _unknown_argument() -> None:
    argparse.ArgumentParser().parse_args(["--local-rank=0"])


def _invalid_argument() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    parser.parse_args(["--steps", "many"])


def _missing_argument() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.parse_args([])


def _unknown_keyword() -> None:
    json.JSONDecoder(learning_rate=1)  # type: ignore[call-arg]


def _unpicklable() -> None:
    multiprocessing.get_context("spawn").Process(target=lambda: None).start()


def _missing_library() -> None:
    ctypes.CDLL("libmissing.so.12")


def _undefined_symbol() -> None:
    Path("a.c").write_text("int missing_symbol(void); int call(void) { return missing_symbol(); }")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "extension.so", "a.c"], check=True)
    ctypes.CDLL("./extension.so", mode=os.RTLD_NOW)


def _host_out_of_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    bytearray(4 << 30)


def _fork_without_memory() -> None:
    import mmap

    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    mmap.mmap(-1, 4 << 30)


def _disk_full() -> None:
    with open("/dev/full", "w", buffering=1) as file:
        file.write("checkpoint\n")


def _too_many_open_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    _ = [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]


def _permission_denied() -> None:
    Path("secret").write_text("")
    os.chmod("secret", 0)
    if os.getuid() == 0:
        os.chmod(".", 0o755)  # noqa: S103
        os.setuid(65534)
    Path("secret").read_text()


def _io_error() -> None:
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.read(1)


def _broken_json() -> None:
    json.loads('{"step": 3, "loss"')


def _broken_zip() -> None:
    Path("a.zip").write_bytes(b"PK\x03\x04 cut")
    zipfile.ZipFile("a.zip")


def _broken_gzip() -> None:
    gzip.decompress(gzip.compress(bytes(1000))[:-12])


def _broken_pickle() -> None:
    pickle.loads(pickle.dumps(bytes(1000))[:-100])  # noqa: S301


def _empty_pickle() -> None:
    Path("empty.pickle").write_bytes(b"")
    with open("empty.pickle", "rb") as file:
        pickle.load(file)  # noqa: S301


def _broken_safetensors() -> None:
    import safetensors

    safetensors.deserialize(b"\x40\x00\x00\x00\x00\x00\x00\x00{")


def _port_in_use() -> None:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        first.listen()
        second.bind(first.getsockname())


def _name_resolution() -> None:
    socket.create_connection(("node-that-is-missing.invalid", 29500), timeout=5)


def _client(endpoint: str) -> Any:
    import boto3
    import botocore.config

    config = botocore.config.Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    return boto3.client("s3", endpoint_url=endpoint, region_name="eu-west-1", config=config, **keys)


def _get(key: str) -> Callable[[], None]:
    """Return a function that reads an object from the server of the test, which answers as the key demands."""
    return lambda: _client(os.environ["FAILURES_S3"]).get_object(Bucket="bucket", Key=key)


def _head() -> None:
    _client(os.environ["FAILURES_S3"]).head_object(Bucket="bucket", Key="NoSuchKey")


def _refused_store() -> None:
    _client("http://127.0.0.1:1").get_object(Bucket="bucket", Key="data")


def _no_credentials() -> None:
    import boto3

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ |= {"AWS_EC2_METADATA_DISABLED": "true", "HOME": os.getcwd()}
    boto3.client("s3", region_name="eu-west-1", endpoint_url="http://127.0.0.1:1").list_buckets()


def _offline_hub() -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": os.getcwd()}
    import huggingface_hub

    huggingface_hub.hf_hub_download("example/model", "config.json")


def _segmentation_fault() -> None:
    faulthandler.enable()
    ctypes.string_at(0)


def _illegal_instruction() -> None:
    faulthandler.enable()
    os.kill(os.getpid(), signal.SIGILL)


def _key_error() -> None:
    dict[str, int]()["input_ids"]


def _assertion() -> None:
    raise AssertionError("sequence is longer than the model allows")


class TrainingError(Exception):
    """An exception of a script."""


def _own_exception() -> None:
    try:
        dict[str, int]()["labels"]
    except KeyError as error:
        raise TrainingError("a batch has no labels") from error


def _no_launcher() -> None:
    os.environ["LOCAL_RANK"]


CASES: dict[str, Callable[[], object]] = {
    "launcher-missing": _no_launcher,
    "import-error.module": _import_error,
    "import-error.name": _missing_name,
    "missing-file": _missing_file,
    "missing-file.script": _missing_script,
    "bad-argument.unknown": _unknown_argument,
    "bad-argument.invalid": _invalid_argument,
    "bad-argument.missing": _missing_argument,
    "bad-argument.keyword": _unknown_keyword,
    "unpicklable": _unpicklable,
    "library-mismatch.missing": _missing_library,
    "library-mismatch.symbol": _undefined_symbol,
    "host-out-of-memory": _host_out_of_memory,
    "host-out-of-memory.mmap": _fork_without_memory,
    "disk-full": _disk_full,
    "too-many-open-files": _too_many_open_files,
    "permission-denied": _permission_denied,
    "io-error": _io_error,
    "corrupt-file.json": _broken_json,
    "corrupt-file.zip": _broken_zip,
    "corrupt-file.gzip": _broken_gzip,
    "corrupt-file.pickle": _broken_pickle,
    "corrupt-file.empty": _empty_pickle,
    "corrupt-file.safetensors": _broken_safetensors,
    "port-in-use": _port_in_use,
    "name-resolution": _name_resolution,
    "object-store-denied": _get("AccessDenied"),
    "object-store-denied.expired": _get("ExpiredToken"),
    "object-store-denied.credentials": _no_credentials,
    "object-missing": _get("NoSuchKey"),
    "object-missing.bucket": _get("NoSuchBucket"),
    "object-missing.head": _head,
    "object-store-unavailable.slow": _get("SlowDown"),
    "object-store-unavailable.internal": _get("InternalError"),
    "object-store-unavailable.refused": _refused_store,
    "hub-download": _offline_hub,
    "segmentation-fault": _segmentation_fault,
    "illegal-instruction": _illegal_instruction,
    "script-error.key": _key_error,
    "script-error.assertion": _assertion,
    "script-error.own": _own_exception,
}

"""The files of runs in an m5ws store as artifacts of MLflow, for reading alone.

MLflow makes the addresses from the location of an experiment, m5ws://STORE_ID:

    m5ws://STORE_ID/RUN/artifacts             of an MLflow run, with the tag of its m5ws run
    m5ws://STORE_ID/models/MODEL/artifacts    of an MLflow model, with the tags of its checkpoint

The variable M5WS_STORES of the process has the URL of each STORE_ID. So a client that chooses a location opens no store
that the server does not list.
"""

import os
import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NoReturn, Protocol
from urllib.parse import urlsplit

from mlflow import MlflowClient
from mlflow.entities import FileInfo
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED, RESOURCE_DOES_NOT_EXIST
from mlflow.store.artifact.artifact_repo import ArtifactRepository

from m5ws.errors import M5Error, NotFound
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from m5ws.tracking.mlflow.tags import RUN_TAG

STORES = "M5WS_STORES"


class Files(Protocol):
    """Files below a folder, by their paths."""

    def list(self, folder: str) -> list[tuple[str, int | None]]:
        """Return the names in a folder with the sizes of files in bytes, None for folders. Raises M5Error."""

    def write(self, path: str, target: Path) -> None:
        """Write a file to `target`. Raises NotFound, CorruptObject."""


OpenFiles = Callable[[Repository, str, str], Files]
"""Returns the files of a run of a store below a folder."""


class Artifacts(ArtifactRepository):
    """The artifact repository of one address. Raises MlflowException."""

    def __init__(
        self, files: OpenFiles, artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None
    ) -> None:
        super().__init__(artifact_uri, tracking_uri, registry_uri)
        self._open = files

    def list_artifacts(self, path: str | None = None) -> list[FileInfo]:
        with _translated():
            listed = self._files().list(path or "")
        return [FileInfo(posixpath.join(path or "", name), size is None, size) for name, size in listed]

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        with _translated():
            self._files().write(remote_file_path, Path(local_path))

    def log_artifact(self, local_file: str, artifact_path: str | None = None) -> None:
        self._refuse()

    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        self._refuse()

    def delete_artifacts(self, artifact_path: str | None = None) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise MlflowException(
            f"{self.artifact_uri} has the files of m5ws runs and is read-only. Log artifacts to another experiment "
            "(mlflow.set_experiment), or write output files ([run] outputs in m5ws.toml).",
            error_code=PERMISSION_DENIED,
        )

    def _files(self) -> Files:
        """Return the files of this address. Asks MLflow for the m5ws run."""
        address = urlsplit(self.artifact_uri)
        kind, _, name = address.path.strip("/").partition("/")
        client, folder = MlflowClient(self.tracking_uri), ""
        if kind == "models":
            model = client.get_logged_model(name.partition("/")[0])
            tags, params = model.tags, model.params or {}
            folders = {"checkpoint": "checkpoints", "outputs": "outputs"}
            folder = "".join(f"{folders[key]}/{params[key]}" for key in folders if key in params)
        else:
            tags = client.get_run(kind).data.tags
        if RUN_TAG not in tags:
            raise NotFound(f"{self.artifact_uri} belongs to no run of m5ws: it has no tag {RUN_TAG}")
        return self._open(_repository(address.netloc, os.environ.get(STORES, "")), tags[RUN_TAG], folder)


@cache
def _repository(store_id: str, stores: str) -> Repository:
    """Return the store of an id by the text of the variable: pairs `ID=URL`, separated by spaces. Raises NotFound."""
    known = dict(pair.partition("=")[::2] for pair in stores.split())
    if store_id not in known:
        raise NotFound(
            f"the variable {STORES} of this process does not list the store {store_id!r}",
            hint=f"Start the MLflow server with {STORES}='{store_id}=URL'.",
        )
    return Repository.open(open_store(known[store_id]))


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise MlflowException(f"{error}. {error.hint}", error_code=RESOURCE_DOES_NOT_EXIST) from error
    except M5Error as error:
        raise MlflowException(f"{error}. {error.hint}") from error

"""Results that a script logged to MLflow itself: metrics, parameters, and artifacts, logged models included.

Metrics, parameters and models that m5ws wrote are left out, and MLflow's measurements of the machine.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from m5ws.repository.repository import Repository
from m5ws.store import open_store
from m5ws.tracking.interface import Fetch, LoggedResults
from m5ws.tracking.mlflow import params, tags
from m5ws.tracking.mlflow.client import client, is_missing
from m5ws.tracking.mlflow.logged_models import CHECKPOINT_TAG
from m5ws.tracking.mlflow.metrics import PREFIX
from m5ws.tracking.mlflow.pages import pages
from m5ws.tracking.mlflow.run_page import find
from m5ws.tracking.mlflow.uri import SCHEME

_SYSTEM = "system/"


def load(tracking_uri: str, store_url: str, run_id: str) -> LoggedResults:
    """Return the results of all MLflow runs of a run. Raises TrackerError, MissingExtra.

    A metric has its complete history. MLflow stores milliseconds and no order within one, so values without a step are
    only a set.
    """
    if is_missing(tracking_uri):
        return LoggedResults()
    metrics, parameters = defaultdict[str, set[tuple[int, str]]](set), defaultdict[str, set[tuple[int, str]]](set)
    artifacts = defaultdict[str, list[Fetch]](list)
    with client(tracking_uri) as mlflow:
        ids = find(mlflow, run_id)
        own = _own_parameters(store_url, run_id) if ids else {}
        for mlflow_id in ids:
            run = mlflow.get_run(mlflow_id)
            for name in run.data.metrics:
                if not name.startswith((PREFIX, _SYSTEM)):
                    history = mlflow.get_metric_history(mlflow_id, name)
                    metrics[name].update((metric.step, metric.value.hex()) for metric in history)
            for name, value in run.data.params.items():
                if own.get(name) != value:
                    parameters[name].add((0, value))
            for name, fetch in (*_artifacts(tracking_uri, mlflow, run), *_models(tracking_uri, mlflow, run)):
                artifacts[name].append(fetch)
    return LoggedResults(
        metrics={name: frozenset(points) for name, points in metrics.items()},
        parameters={name: frozenset(values) for name, values in parameters.items()},
        artifacts={name: tuple(each) for name, each in artifacts.items()},
    )


def _own_parameters(store_url: str, run_id: str) -> dict[str, str]:
    """Return the parameters that m5ws writes to the pages of a run."""
    repo = Repository.open(open_store(store_url))
    return params.params(repo, tags.load(repo, run_id))


def _artifacts(tracking_uri: str, mlflow: Any, run: Any) -> Iterator[tuple[str, Fetch]]:
    """Yield the files that a script logged. A location of m5ws has none."""
    if run.info.artifact_uri.startswith(SCHEME):
        return
    mlflow_id = run.info.run_id
    for path in _walk(lambda folder: mlflow.list_artifacts(mlflow_id, folder)):
        yield path, partial(_fetch, tracking_uri, f"runs:/{mlflow_id}/{path}")


def _models(tracking_uri: str, mlflow: Any, run: Any) -> Iterator[tuple[str, Fetch]]:
    """Yield the files of the models that a script logged."""
    query = f"source_run_id = '{run.info.run_id}'"
    search = lambda token: mlflow.search_logged_models(  # noqa: E731
        [run.info.experiment_id], filter_string=query, page_token=token
    )
    for model in pages(search):
        if CHECKPOINT_TAG in model.tags:
            continue
        for path in _walk(partial(mlflow.list_logged_model_artifacts, model.model_id)):
            yield f"models/{model.name}/{path}", partial(_fetch, tracking_uri, f"{model.artifact_location}/{path}")


def _walk(list_folder: Callable[[str | None], Any], folder: str | None = None) -> Iterator[str]:
    """Yield the paths of all files below a folder."""
    for entry in list_folder(folder):
        if entry.is_dir:
            yield from _walk(list_folder, entry.path)
        else:
            yield entry.path


def _fetch(tracking_uri: str, uri: str, folder: Path) -> Path:
    """Copy an artifact into a folder, and return its path. Raises TrackerError."""
    with client(tracking_uri):
        from mlflow import artifacts

        return Path(artifacts.download_artifacts(artifact_uri=uri, tracking_uri=tracking_uri, dst_path=str(folder)))

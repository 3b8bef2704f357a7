"""What m5ws asks of MLflow, and the verdicts it writes there.

MLflow's errors become `TrackerError` by type here; whoever calls decides what a tracker that is down costs.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from m5ws.errors import M5Error, MissingExtra
from m5ws.records.verdict import Verdict
from m5ws.repository import runs
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from m5ws.tracking.mlflow import tags
from m5ws.tracking.mlflow.follower import Follower, Options
from m5ws.tracking.mlflow.metrics import PREFIX
from m5ws.tracking.mlflow.migrations import EXTRA
from m5ws.tracking.mlflow.uri import database

_RUN_ID = re.compile(r"[0-9a-f]{32}")
_IN_URL = re.compile(r"/runs/([0-9a-f]{32})(?![0-9a-f])")
_SYSTEM = "system/"


class TrackerError(M5Error):
    """MLflow did not answer, or refused."""

    exit_code = 3
    hint = "Is the tracking server up? [mlflow] tracking_uri in m5ws.toml says where it is."


def resolve(tracking_uri: str, text: str) -> str | None:
    """Return the m5ws run of an MLflow run id or of its page's URL; None if it is neither or not m5ws's.

    Text of another form costs nothing. Raises TrackerError, MissingExtra.
    """
    text = text.strip()
    named = _RUN_ID.fullmatch(text) or _IN_URL.search(text)
    if named is None or _missing(tracking_uri):
        return None
    with client(tracking_uri) as mlflow:
        run = _get(mlflow, named.group(named.lastindex or 0))
        tag = run.data.tags.get(tags.RUN_TAG) if run else None
        return str(tag) if tag else None


def script_metrics(tracking_uri: str, run_id: str) -> dict[str, list[tuple[int, str]]]:
    """Return what a run's script logged itself: metric name to (step, `float.hex()` of the value).

    All of the history, of all MLflow runs that the script started, without what m5ws delivered and without
    MLflow's own measurements of the machine. Sorted by step, then value, each pair once: MLflow keeps
    milliseconds and no order within one, so what is logged without a step is a set and nothing more.
    Raises TrackerError, MissingExtra.
    """
    from m5ws.tracking.mlflow.run_page import find

    if _missing(tracking_uri):
        return {}
    metrics: dict[str, set[tuple[int, str]]] = {}
    with client(tracking_uri) as mlflow:
        for mlflow_id in find(mlflow, run_id):
            for name in mlflow.get_run(mlflow_id).data.metrics:
                if not name.startswith((PREFIX, _SYSTEM)):
                    history = mlflow.get_metric_history(mlflow_id, name)
                    metrics.setdefault(name, set()).update((one.step, one.value.hex()) for one in history)
    return {name: sorted(metrics[name]) for name in sorted(metrics)}


def write_verdict(tracking_uri: str, experiment: str, store_url: str, verdict: Verdict) -> None:
    """Put a verdict onto the pages of all its runs, as tags and in the description; a page that is missing is made.

    Raises TrackerError, MissingExtra.
    """
    from m5ws.tracking.mlflow.run_page import Page

    repo = Repository.open(open_store(store_url))
    with client(tracking_uri) as mlflow:
        for run_id in (verdict.run, *verdict.replays):
            options = Options(store=store_url, run=run_id, tracking_uri=tracking_uri, experiment=experiment, once=True)
            known = [one for one in runs.verdicts(repo, run_id) if one.replay != verdict.replay]
            found = _pages(mlflow, options)
            subject, joint = tags.load(repo, run_id), runs.joint(repo, run_id)
            Page(mlflow, found[0], found[1:]).judge(subject, [*known, verdict], joint)


def write_joint(tracking_uri: str, experiment: str, store_url: str, run_id: str) -> None:
    """Put what the store says of a run onto its page, with its newest joint verdict. Raises as `write_verdict`."""
    from m5ws.tracking.mlflow.run_page import Page

    repo = Repository.open(open_store(store_url))
    options = Options(store=store_url, run=run_id, tracking_uri=tracking_uri, experiment=experiment, once=True)
    with client(tracking_uri) as mlflow:
        found = _pages(mlflow, options)
        subject, said = tags.load(repo, run_id), runs.verdicts(repo, run_id)
        Page(mlflow, found[0], found[1:]).judge(subject, said, runs.joint(repo, run_id))


def _pages(mlflow: Any, options: Options) -> list[str]:
    """Return the MLflow runs of a run, the first of which is its page; that is made if it is missing."""
    from m5ws.tracking.mlflow.run_page import find

    if not find(mlflow, options.run):
        Follower(options).advance(last=True)
    return find(mlflow, options.run)


@contextmanager
def client(tracking_uri: str) -> Iterator[Any]:
    """Yield an MLflow client; what MLflow raises inside is a TrackerError."""
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
        from requests import RequestException
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError as error:
        raise MissingExtra("tracking in MLflow", EXTRA) from error
    try:
        yield MlflowClient(tracking_uri)
    except (MlflowException, RequestException, SQLAlchemyError) as error:
        raise TrackerError(f"MLflow at {tracking_uri}: {error}") from error


def _get(mlflow: Any, mlflow_id: str) -> Any:
    from mlflow.exceptions import MlflowException

    try:
        return mlflow.get_run(mlflow_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def _missing(tracking_uri: str) -> bool:
    """Return whether the embedded store was never made; asking MLflow would make it."""
    path = database(tracking_uri)
    return path is not None and not path.exists()

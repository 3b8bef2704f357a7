"""Queries to MLflow, and the verdicts that m5ws writes there.

MLflow's errors become `TrackerError`. The caller decides on the reaction to a tracker that is down.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from m5ws.errors import M5Error, MissingExtra
from m5ws.tracking.mlflow import migrations
from m5ws.tracking.mlflow.follower import Follower, FollowerOptions, limit_requests
from m5ws.tracking.mlflow.uri import database


class TrackerError(M5Error):
    """MLflow did not answer, or refused the request."""

    exit_code = 3
    hint = "Check that the server of [mlflow] tracking_uri in m5ws.toml is up."


def refresh(options: FollowerOptions) -> None:
    """Write a run's verdicts, newest joint verdict and notes to its page. A missing page is created.

    Raises TrackerError, MissingExtra.
    """
    with client(options.tracking_uri):
        Follower(options).judge()


def experiment_page(tracking_uri: str, name: str) -> str:
    """Return the place of an experiment's runs below the UI's address; empty if there is no such experiment."""
    if is_missing(tracking_uri):
        return ""
    with client(tracking_uri) as mlflow:
        experiment = mlflow.get_experiment_by_name(name)
    return f"/#/experiments/{experiment.experiment_id}/runs" if experiment is not None else ""


@contextmanager
def client(tracking_uri: str) -> Iterator[Any]:
    """Yield an MLflow client. Errors of MLflow in the block become TrackerError."""
    limit_requests()
    migrations.wait(tracking_uri)
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
        from requests import RequestException
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError as error:
        raise MissingExtra("tracking in MLflow", migrations.EXTRA) from error
    try:
        yield MlflowClient(tracking_uri)
    except (MlflowException, RequestException, SQLAlchemyError) as error:
        raise TrackerError(f"MLflow at {tracking_uri}: {error}") from error


def is_missing(tracking_uri: str) -> bool:
    """Return True if the embedded store does not exist. A request would create it."""
    path = database(tracking_uri)
    return path is not None and not path.exists()

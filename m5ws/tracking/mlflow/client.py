"""A client of MLflow.

MLflow's errors become `TrackerError`. The caller decides on the reaction to a tracker that is down.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from m5ws import secret_scan
from m5ws.errors import M5Error
from m5ws.tracking.mlflow import migrations
from m5ws.tracking.mlflow.follower import limit_requests
from m5ws.tracking.mlflow.uri import database


class TrackerError(M5Error):
    """MLflow did not answer, or refused the request."""

    exit_code = 3
    hint = (
        "Check that the server is up, its address in m5ws.toml ([mlflow] tracking_uri) or --to, and the variables "
        "MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD and MLFLOW_TRACKING_SERVER_CERT_PATH."
    )


@contextmanager
def client(tracking_uri: str) -> Iterator[Any]:
    """Yield an MLflow client. Errors of MLflow in the block become TrackerError. Raises MissingExtra."""
    limit_requests()
    migrations.installed()
    migrations.wait(tracking_uri)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield MlflowClient(tracking_uri)
    except (MlflowException, RequestException, SQLAlchemyError) as error:
        raise TrackerError(secret_scan.masked(f"MLflow at {tracking_uri}: {error}")) from error


def is_missing(tracking_uri: str) -> bool:
    """Return True if the embedded store does not exist. A request would create it."""
    path = database(tracking_uri)
    return path is not None and not path.exists()

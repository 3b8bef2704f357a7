"""The store and the tracking store of a workspace."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from m5ws.records.check import Check
from m5ws.store.interface import ObjectStore
from m5ws.store.s3 import probe
from m5ws.tracking.interface import Tracker
from m5ws.tracking.mlflow.migrations import installed
from m5ws.tracking.mlflow.uri import database
from m5ws.wording.checks import NO_STORE


def check_store(name: str, store: ObjectStore, folder: Path | None) -> Check:
    """Check that this user can write, and that each key has one writer. `folder` is the store's directory, if any."""
    if folder is not None and not folder.exists():
        parent = next(outer for outer in folder.parents if outer.exists())
        writable = os.access(parent, os.W_OK, effective_ids=True)
        return Check(name, "ok" if writable else "broken", NO_STORE.format(path=folder))
    probe.race(store)
    return Check(name, "ok", f"{store.url} is writable, and each key has one writer")


def check_tracking(name: str, tracker: Tracker | None, tracking_uri: str) -> Check:
    """Check that MLflow's server answers, or that the file of the embedded tracking store is a database of MLflow."""
    if tracker is None:
        return Check(name, "not needed", "[mlflow] enabled = false")
    installed()
    path = database(tracking_uri)
    if path is None:
        tracker.ui_page()
        return Check(name, "ok", f"{tracking_uri} answers")
    if not path.exists():
        return Check(name, "ok", f"the first run creates {path}")
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True)) as connection:
            connection.execute("SELECT version_num FROM alembic_version")
    except sqlite3.Error as error:
        return Check(name, "broken", f"{path}: {error}")
    return Check(name, "ok", str(path))

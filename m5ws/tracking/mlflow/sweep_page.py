"""The page of a sweep in MLflow, below which MLflow shows the pages of its runs.

The followers of the runs find it or create it. It has no metrics: it is a place in MLflow's list, and is never running.
"""

import time
from contextlib import suppress
from typing import Any

from m5ws.records.run import Sweep
from m5ws.tracking.mlflow.pages import search
from m5ws.tracking.mlflow.tags import NOTE_TAG

SWEEP_PAGE_TAG = "m5ws.sweep_page"


def open_page(client: Any, experiment_id: str, sweep: Sweep) -> str:
    """Return the MLflow run that is the page of a sweep. A missing page is created."""
    from mlflow.exceptions import MlflowException

    if not (page_ids := _find(client, sweep)):
        created = client.create_run(
            experiment_id,
            start_time=int(time.time() * 1000),
            tags={SWEEP_PAGE_TAG: sweep.id, NOTE_TAG: _text(sweep)},
            run_name=sweep.name or f"sweep {sweep.id}",
        )
        client.set_terminated(created.info.run_id)
        page_ids = _find(client, sweep)
    # Followers of several runs may have created one each at the same time. All take the first, when they end at last.
    for duplicate in page_ids[1:]:
        with suppress(MlflowException):  # another follower has deleted it
            client.delete_run(duplicate)
    return page_ids[0]


def _find(client: Any, sweep: Sweep) -> list[str]:
    runs = search(client, SWEEP_PAGE_TAG, sweep.id)
    return [run.info.run_id for run in sorted(runs, key=lambda run: (run.info.start_time or 0, run.info.run_id))]


def _text(sweep: Sweep) -> str:
    """Return the description of a sweep in Markdown."""
    axes = [f"- `{axis.key}`: {', '.join(f'`{value}`' for value in axis.values)}" for axis in sweep.axes]
    resume = f"`m5ws resume {sweep.id}` starts and resumes the runs that did not finish."
    return "\n".join([f"Sweep {sweep.id} of snapshot {sweep.snapshot[:12]}:", "", *axes, "", resume])

"""The content of a run's page in MLflow, field by field."""

from typing import Any

from mlflow import MlflowClient

from m5ws.records.run import Run
from m5ws.tracking.mlflow.run_page import find


def page_content(client: MlflowClient, run: Run) -> dict[str, Any]:
    """Return all that is on a run's page, without the ids that MLflow chose; fails if there are two pages."""
    (only,) = find(client, run.id)
    page = client.get_run(only)
    assert page.inputs is not None
    assert page.outputs is not None
    names = {model.model_id: model for model in client.search_logged_models([page.info.experiment_id])}
    return {
        "tags": {key: value.replace(run.id, "RUN") for key, value in page.data.tags.items()},
        "params": page.data.params,
        "status": (page.info.status, page.info.start_time, page.info.end_time),
        "metrics": {
            name: [(one.step, one.timestamp, one.value) for one in client.get_metric_history(only, name)]
            for name in page.data.metrics
        },
        "datasets": [one.to_dictionary() for one in page.inputs.dataset_inputs],
        "outputs": sorted((names[one.model_id].name, one.step) for one in page.outputs.model_outputs),
        "artifacts": sorted(entry.path for entry in client.list_artifacts(only)),
        "models": sorted(
            (one.name, str(one.status)) for one in names.values() if one.tags.get("m5ws.run_id") == run.id
        ),
    }

"""Checkpoints as MLflow's external models: what they are and whose, while the weights stay in the m5ws store.

A model is known by the digest of its checkpoint's record. MLflow is asked once which ones it has, so that a
publication may be repeated after any kill, and costs two calls a checkpoint and one for all of them.
"""

from collections.abc import Sequence
from typing import Any

from m5ws.adapters.mlflow_pages import pages
from m5ws.adapters.mlflow_subject import RUN_TAG, SNAPSHOT_TAG
from m5ws.events import CheckpointPublished
from m5ws.records import Digest, Run

CHECKPOINT_TAG = "m5ws.checkpoint"
STEP_TAG = "m5ws.step"
MODELS_TAG = "m5ws.checkpoints"
NO_MODELS = "not listed: this MLflow server has no logged models (MLflow 3 has); `m5ws show` lists the checkpoints"
_READY = "READY"
_LINKS = 500
_NONE_THERE = ("ENDPOINT_NOT_FOUND", "NOT_IMPLEMENTED")


class Models:
    """The models of one run's checkpoints, linked to its MLflow run."""

    def __init__(self, client: Any, experiment_id: str, page_id: str) -> None:
        self._client = client
        self._experiment_id = experiment_id
        self._page_id = page_id
        self._known: dict[Digest, Any] | None = None
        self._linked: set[str] = set()

    def publish(self, run: Run, events: Sequence[CheckpointPublished]) -> bool:
        """List checkpoints, each one once; return False where MLflow is of before it had models."""
        from mlflow.exceptions import MlflowException

        try:
            known = self._ask(run)
        except MlflowException as error:
            if error.error_code in _NONE_THERE:
                return False
            raise
        checkpoints = list({event.checkpoint: event for event in events}.values())
        for event in checkpoints:
            model = known.get(event.checkpoint) or self._create(run, event)
            if model.status != _READY:
                model = self._client.finalize_logged_model(model.model_id, _READY)
            known[event.checkpoint] = model
        self._link([(known[event.checkpoint].model_id, event.step) for event in checkpoints])
        return True

    def _ask(self, run: Run) -> dict[Digest, Any]:
        """Return the models that MLflow has, by their checkpoint's digest, and note which ones the page lists."""
        if self._known is None:
            query = f"tags.`{RUN_TAG}` = '{run.id}'"
            found = pages(
                lambda token: self._client.search_logged_models(
                    [self._experiment_id], filter_string=query, page_token=token
                )
            )
            known = {one.tags[CHECKPOINT_TAG]: one for one in found if CHECKPOINT_TAG in one.tags}
            outputs = self._client.get_run(self._page_id).outputs
            self._linked = {one.model_id for one in outputs.model_outputs} if outputs else set()
            self._known = known
        return self._known

    def _create(self, run: Run, event: CheckpointPublished) -> Any:
        return self._client.create_logged_model(
            experiment_id=self._experiment_id,
            name=f"checkpoint-{event.name}",
            source_run_id=self._page_id,
            model_type="checkpoint",
            params={"run": run.id, "step": str(event.step), "checkpoint": event.name},
            tags={
                RUN_TAG: run.id,
                SNAPSHOT_TAG: run.snapshot,
                CHECKPOINT_TAG: event.checkpoint,
                STEP_TAG: str(event.step),
                "m5ws.content": event.content,
                # MLflow's own mark of a model whose files are elsewhere.
                "mlflow.model.isExternal": "true",
            },
        )

    def _link(self, found: Sequence[tuple[str, int]]) -> None:
        """List models among what the MLflow run made, at their steps."""
        from mlflow.entities import LoggedModelOutput

        new = [LoggedModelOutput(model_id, step) for model_id, step in found if model_id not in self._linked]
        for start in range(0, len(new), _LINKS):
            group = new[start : start + _LINKS]
            self._client.log_outputs(self._page_id, group)
            self._linked.update(one.model_id for one in group)

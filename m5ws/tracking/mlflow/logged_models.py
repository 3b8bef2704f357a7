"""Checkpoints as MLflow's external models: a checkpoint's name and run. The weights stay in the m5ws store.

Output files are listed too, after the last step. A model has the digest of its record. MLflow's models are queried
once, so a publication may be repeated after any kill. It costs two requests a checkpoint, and one for all of them.
"""

from collections.abc import Sequence
from typing import Any

from m5ws.records.base import Digest
from m5ws.records.ledger import CheckpointPublished, OutputsStored
from m5ws.records.run import Run
from m5ws.tracking.mlflow.pages import pages
from m5ws.tracking.mlflow.tags import RUN_TAG, SNAPSHOT_TAG

CHECKPOINT_TAG = "m5ws.checkpoint"
STEP_TAG = "m5ws.step"
_READY = "READY"
_LINKS = 500

RunResult = CheckpointPublished | OutputsStored
"""Event of a checkpoint, or of output files, which have no step."""


class Models:
    """The models of one run's checkpoints, linked to its MLflow run."""

    def __init__(self, client: Any, experiment_id: str, page_id: str) -> None:
        self._client = client
        self._experiment_id = experiment_id
        self._page_id = page_id
        self._known: dict[Digest, Any] | None = None
        self._linked: set[str] = set()

    def publish(self, run: Run, results: Sequence[RunResult], last_step: int) -> None:
        """List checkpoints and output files, each once."""
        known, links = self._ask(run), list[tuple[str, int]]()
        for record, result in {_record(result): result for result in results}.items():
            model = known.get(record) or self._create(run, result)
            if model.status != _READY:
                model = self._client.finalize_logged_model(model.model_id, _READY)
            known[record] = model
            links.append((model.model_id, last_step if isinstance(result, OutputsStored) else result.step))
        self._link(links)

    def count_missing(self, run: Run, results: Sequence[RunResult]) -> int:
        """Return the number of checkpoints and output files that are no models linked to the page."""
        known = self._ask(run)
        linked = {record for record, model in known.items() if model.model_id in self._linked}
        return len({_record(result) for result in results} - linked)

    def _ask(self, run: Run) -> dict[Digest, Any]:
        """Return MLflow's models by their checkpoint's digest, and remember the models that the page lists."""
        if self._known is None:
            query = f"tags.`{RUN_TAG}` = '{run.id}'"
            models = pages(
                lambda token: self._client.search_logged_models(
                    [self._experiment_id], filter_string=query, page_token=token
                )
            )
            known = {model.tags[CHECKPOINT_TAG]: model for model in models if CHECKPOINT_TAG in model.tags}
            outputs = self._client.get_run(self._page_id).outputs
            self._linked = {model.model_id for model in outputs.model_outputs} if outputs else set()
            self._known = known
        return self._known

    def _create(self, run: Run, result: RunResult) -> Any:
        kind, step = ("outputs", "") if isinstance(result, OutputsStored) else ("checkpoint", str(result.step))
        return self._client.create_logged_model(
            experiment_id=self._experiment_id,
            name=f"{kind}-{result.name}",
            source_run_id=self._page_id,
            model_type=kind,
            params={"run": run.id, kind: result.name, **({"step": step} if step else {})},
            tags={
                RUN_TAG: run.id,
                SNAPSHOT_TAG: run.snapshot,
                CHECKPOINT_TAG: _record(result),
                **({STEP_TAG: step} if step else {}),
                "m5ws.content": result.content,
                # MLflow's own mark of a model with files elsewhere.
                "mlflow.model.isExternal": "true",
            },
        )

    def _link(self, links: Sequence[tuple[str, int]]) -> None:
        """List models as outputs of the MLflow run, at their steps."""
        from mlflow.entities import LoggedModelOutput

        new = [LoggedModelOutput(model_id, step) for model_id, step in links if model_id not in self._linked]
        for start in range(0, len(new), _LINKS):
            group = new[start : start + _LINKS]
            self._client.log_outputs(self._page_id, group)
            self._linked.update(link.model_id for link in group)


def _record(result: RunResult) -> Digest:
    return result.record if isinstance(result, OutputsStored) else result.checkpoint

"""Checkpoints as MLflow's external models: a checkpoint's name and run. The weights stay in the m5ws store.

A model has the digest of its checkpoint's record. MLflow's models are queried once, so a publication may be repeated
after any kill. It costs two requests a checkpoint, and one for all of them.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from m5ws.records.base import Digest
from m5ws.records.ledger import CheckpointPublished, OutputsStored
from m5ws.records.run import Run
from m5ws.tracking.mlflow.pages import pages
from m5ws.tracking.mlflow.tags import RUN_TAG, SNAPSHOT_TAG

CHECKPOINT_TAG = "m5ws.checkpoint"
STEP_TAG = "m5ws.step"
_READY = "READY"
_LINKS = 500


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result of a run: a checkpoint, or output files, which have no step (`step` is None).

    The page lists it at the step `after`. `record` is the digest of its record.
    """

    name: str
    record: Digest
    content: Digest
    step: int | None
    after: int

    @property
    def params(self) -> dict[str, str]:
        """The parameters of the model, in addition to the run's id."""
        kind, _, name = self.name.partition("-")
        return {kind: name} | ({"step": str(self.step)} if self.step is not None else {})


def made(event: CheckpointPublished | OutputsStored, last_step: int) -> RunResult:
    """Return the model that an event describes. Output files are listed after the last step."""
    if isinstance(event, OutputsStored):
        name = f"outputs-{event.name}"
        return RunResult(name=name, record=event.record, content=event.content, step=None, after=last_step)
    name, step = f"checkpoint-{event.name}", event.step
    return RunResult(name=name, record=event.checkpoint, content=event.content, step=step, after=step)


class Models:
    """The models of one run's checkpoints, linked to its MLflow run."""

    def __init__(self, client: Any, experiment_id: str, page_id: str) -> None:
        self._client = client
        self._experiment_id = experiment_id
        self._page_id = page_id
        self._known: dict[Digest, Any] | None = None
        self._linked: set[str] = set()

    def publish(self, run: Run, made: Sequence[RunResult]) -> None:
        """List checkpoints and output files, each once."""
        known = self._ask(run)
        each = list({result.record: result for result in made}.values())
        for result in each:
            model = known.get(result.record) or self._create(run, result)
            if model.status != _READY:
                model = self._client.finalize_logged_model(model.model_id, _READY)
            known[result.record] = model
        self._link([(known[result.record].model_id, result.after) for result in each])

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

    def _create(self, run: Run, made: RunResult) -> Any:
        return self._client.create_logged_model(
            experiment_id=self._experiment_id,
            name=made.name,
            source_run_id=self._page_id,
            model_type=made.name.partition("-")[0],
            params={"run": run.id, **made.params},
            tags={
                RUN_TAG: run.id,
                SNAPSHOT_TAG: run.snapshot,
                CHECKPOINT_TAG: made.record,
                **({STEP_TAG: str(made.step)} if made.step is not None else {}),
                "m5ws.content": made.content,
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

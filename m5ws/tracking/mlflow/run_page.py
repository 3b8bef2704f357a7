"""The page of one m5ws run in MLflow. It is found or created, and brought up to date with the ledger.

Every call may be repeated after any kill. Tags, parameters, datasets and status are set to their final values. For
metrics and checkpoints, MLflow is queried for the progress of an earlier delivery. A batch of metrics that was sent
before is sent again, and MLflow's database has each of its rows once.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from m5ws.records.run import Run
from m5ws.records.snapshot import Dataset, RemoteDataset
from m5ws.records.verdict import JointVerdict, Verdict
from m5ws.repository.repository import Repository
from m5ws.tracking.mlflow import description
from m5ws.tracking.mlflow import params as mlflow_params
from m5ws.tracking.mlflow import tags as mlflow_subject
from m5ws.tracking.mlflow.logged_models import Models, RunResult
from m5ws.tracking.mlflow.metrics import Point, Position
from m5ws.tracking.mlflow.pages import pages
from m5ws.tracking.mlflow.tags import RUN_TAG, Subject

DELIVERED_TAG = "m5ws.delivered"
"""Attempt and step of the last point, as `attempt:step`, written in the same call as the point's metrics."""
AnyDataset = Dataset | RemoteDataset
_NOTHING: Position = (0, 0)
_KIND = {"mlflow.experimentKind": "custom_model_development"}
"""With this tag MLflow's UI shows the runs as training, and not as calls of a language model."""
_METRICS = 1000
_PARAMS = 100
_TAGS = 100
_DIGEST_CHARACTERS = 36
_TAG_CHARACTERS = 500


class RunPage:
    """The MLflow run of an m5ws run, and the other MLflow runs that its script started."""

    def __init__(self, client: Any, run_id: str, others: Sequence[str] = ()) -> None:
        self._client = client
        self.run_id = run_id
        self.others = tuple(others)
        self._run = client.get_run(run_id)
        self.position = _position(self._run.data.tags.get(DELIVERED_TAG))
        self._status: tuple[str, int | None] = (self._run.info.status, self._run.info.end_time)
        self._models = Models(client, self._run.info.experiment_id, run_id)

    def keep(self) -> None:
        """Mark this MLflow run as the delivery target, for when others appear."""
        if DELIVERED_TAG not in self._run.data.tags:
            self._client.set_tag(self.run_id, DELIVERED_TAG, _written(_NOTHING))

    def describe(
        self,
        repo: Repository,
        subject: Subject,
        verdicts: Sequence[Verdict],
        more: Mapping[str, str],
        joint: JointVerdict | None = None,
    ) -> None:
        """Set tags, description, parameters and datasets, on the script's other runs too."""
        tags = mlflow_subject.tags(subject) | description.verdict_tags(subject.run.id, verdicts, joint) | dict(more)
        tags |= mlflow_subject.note_tags(subject) | mlflow_subject.cause_tags(subject) | self._lineage(subject.run)
        text = description.describe_run(subject, verdicts, joint)
        params = mlflow_params.params(repo, subject)
        for run_id in (self.run_id, *self.others):
            run = self._client.get_run(run_id)
            own = {key: tags[key] for key in tags if not _of_the_script(key, run.data.tags)}
            self._set(run, own | {mlflow_subject.NOTE_TAG: description.placed(_note_of(run), text)}, params)
            self._log_datasets(run, subject)

    def _lineage(self, run: Run) -> dict[str, str]:
        """Return the tag by which MLflow shows a fork below a parent that has a page here."""
        run_ids = find(self._client, run.parent.run) if run.parent is not None else []
        return {mlflow_subject.PARENT_PAGE_TAG: run_ids[0]} if run_ids else {}

    def judge(self, subject: Subject, verdicts: Sequence[Verdict], joint: JointVerdict | None = None) -> None:
        """Set the verdicts, the notes and the newest cause of the run, and nothing else."""
        tags = description.verdict_tags(subject.run.id, verdicts, joint)
        tags |= mlflow_subject.note_tags(subject) | mlflow_subject.cause_tags(subject)
        text = description.describe_run(subject, verdicts, joint)
        for run_id in (self.run_id, *self.others):
            run = self._client.get_run(run_id)
            self._set(run, tags | {mlflow_subject.NOTE_TAG: description.placed(_note_of(run), text)}, {})

    def send(self, points: Sequence[Point]) -> int:
        """Deliver a batch from the front of `points`, in order, and return the number of points that are done.

        Points up to `position` were delivered before.
        """
        from mlflow.entities import Metric, RunTag

        done = sum(1 for _ in itertools.takewhile(lambda point: point.position <= self.position, points))
        batch = list(_batch(points[done:]))
        if not batch:
            return done
        metrics = [
            Metric(key, value, point.time_ms, point.step) for point in batch for key, value in point.values.items()
        ]
        last = batch[-1].position
        # Delivered from here on.
        self._client.log_batch(self.run_id, metrics=metrics, tags=[RunTag(DELIVERED_TAG, _written(last))])
        self.position = last
        return done + len(batch)

    def publish(self, subject: Subject, results: Sequence[RunResult], last_step: int) -> None:
        """List checkpoints and output files as models."""
        self._models.publish(subject.run, results, last_step)

    def settle(self, status: str, end_ms: int | None) -> None:
        """Set the run's status, and the end if it has ended."""
        if end_ms is None and status != self._status[0]:
            self._client.update_run(self.run_id, status=status)
        elif end_ms is not None and (status, end_ms) != self._status:
            self._client.set_terminated(self.run_id, status, end_ms)
        self._status = (status, end_ms)

    def _set(self, run: Any, tags: Mapping[str, str], params: Mapping[str, str]) -> None:
        """Write tags that differ from MLflow's, and missing parameters. MLflow never changes a parameter."""
        from mlflow.entities import Param, RunTag

        changed = [RunTag(key, value) for key, value in tags.items() if run.data.tags.get(key) != value]
        added = [Param(key, value) for key, value in params.items() if key not in run.data.params]
        for group in _groups(changed, _TAGS):
            self._client.log_batch(run.info.run_id, tags=group)
        for group in _groups(added, _PARAMS):
            self._client.log_batch(run.info.run_id, params=group)

    def lacks(self, subject: Subject, points: Sequence[Point], results: Sequence[RunResult]) -> tuple[int, int, int]:
        """Return the numbers of points, of results and of datasets that the page lacks. Only reads."""
        missing = sum(point.position > self.position for point in points)
        return missing, self._models.count_missing(subject.run, results), len(_missing_datasets(self._run, subject))

    def _log_datasets(self, run: Any, subject: Subject) -> None:
        for group in _groups(_missing_datasets(run, subject), _METRICS):
            self._client.log_inputs(run.info.run_id, datasets=group)


def _missing_datasets(run: Any, subject: Subject) -> list[Any]:
    """Return the datasets that are no inputs of an MLflow run. MLflow has 36 characters of a digest, the tags all."""
    from mlflow import entities

    logged = {(each.dataset.name, each.dataset.digest) for each in run.inputs.dataset_inputs} if run.inputs else set()
    snapshot, inputs = subject.snapshot, []
    of_snapshot = f"m5ws:snapshot/{subject.run.snapshot}/data/"
    datasets: list[tuple[AnyDataset, str, dict[str, str]]]
    datasets = [(each, f"{of_snapshot}{each.name}", {"tree": each.tree}) for each in snapshot.datasets]
    datasets += [(each, each.url, {"manifest": each.manifest}) for each in snapshot.remote]
    for dataset, source, known in datasets:
        full = dataset.hash or next(iter(known.values()))
        name, digest = dataset.name[:_TAG_CHARACTERS], full if len(full) <= _DIGEST_CHARACTERS else full[:32]
        about = {"digest": full, "kind": dataset.kind, "size_bytes": str(dataset.size_bytes), **known}
        if (name, digest) not in logged:
            tags = [entities.InputTag(f"m5ws.{key}", value[:_TAG_CHARACTERS]) for key, value in about.items()]
            tags.append(entities.InputTag("mlflow.data.context", "training"))
            entry = entities.Dataset(name=name, digest=digest, source_type="m5ws", source=source)
            inputs.append(entities.DatasetInput(entry, tags))
    return inputs


def find(client: Any, run_id: str) -> list[str]:
    """Return the ids of the MLflow runs of an m5ws run: the delivery target first, then by age.

    All experiments are searched, because a script may choose its own.
    """
    experiments = [each.experiment_id for each in pages(lambda token: client.search_experiments(page_token=token))]
    query = f"tags.`{RUN_TAG}` = '{run_id}'"
    runs = pages(lambda token: client.search_runs(experiments, query, page_token=token)) if experiments else ()
    return [run.info.run_id for run in sorted(runs, key=lambda run: (DELIVERED_TAG not in run.data.tags, *order(run)))]


def order(run: Any) -> tuple[int, int, int, str]:
    """Return the sort key of MLflow runs of one m5ws run: attempt, rank, start, id."""
    tags = run.data.tags
    attempt, rank = (_number(tags.get(tag)) for tag in (mlflow_subject.ATTEMPT_TAG, mlflow_subject.RANK_TAG))
    return attempt, rank, run.info.start_time or 0, run.info.run_id


def open_page(client: Any, experiment: str, location: str | None, subject: Subject, started_ms: int) -> RunPage:
    """Return the run's page: the existing page, or the page that its script started, or a new page."""
    run_ids = find(client, subject.run.id)
    if not run_ids:
        created = client.create_run(
            open_experiment(client, experiment, location),
            start_time=started_ms,
            tags={RUN_TAG: subject.run.id, DELIVERED_TAG: _written(_NOTHING)},
            run_name=mlflow_subject.name(subject.run),
        )
        run_ids = [created.info.run_id]
    page = RunPage(client, run_ids[0], run_ids[1:])
    page.keep()
    return page


def open_experiment(client: Any, name: str, location: str | None) -> str:
    """Return the experiment's id. A missing experiment is created, with its artifacts at `location`."""
    from mlflow.exceptions import MlflowException

    existing = client.get_experiment_by_name(name)
    if existing is not None:
        return str(existing.experiment_id)
    try:
        return str(client.create_experiment(name, artifact_location=location, tags=_KIND))
    except MlflowException:
        # Another process was first. If not, the next query raises the error.
        existing = client.get_experiment_by_name(name)
        if existing is None:
            raise
        return str(existing.experiment_id)


def _batch(points: Sequence[Point]) -> Iterator[Point]:
    """Yield the points that fit into one call. Points are never split."""
    rows = 0
    for index, point in enumerate(points):
        rows += len(point.values)
        if index and rows > _METRICS:
            return
        yield point


def _groups(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


def _position(text: str | None) -> Position:
    attempt, _, step = (text or "").partition(":")
    return (int(attempt), int(step)) if attempt.isdigit() and step.isdigit() else _NOTHING


def _written(position: Position) -> str:
    return f"{position[0]}:{position[1]}"


def _note_of(run: Any) -> str | None:
    note = run.data.tags.get(mlflow_subject.NOTE_TAG)
    return str(note) if note else None


def _of_the_script(key: str, present: Mapping[str, str]) -> bool:
    """Return True if a tag of MLflow's own exists already. Values from the script's process stay."""
    return key in ("mlflow.user", "mlflow.source.name", "mlflow.source.type") and key in present


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0

"""A store of a team: many ended runs, each with its own snapshot and config."""

from m5ws.records.environment import Observed
from m5ws.records.ledger import NODE, AttemptEnded, RankStarted, Step
from m5ws.records.run import LaunchSpec, Run
from m5ws.repository import reindex
from m5ws.repository.references import runs
from m5ws.repository.repository import Repository
from tests.support.records import planted

_BEGIN_S = 1.7e9


def run_id(number: int) -> str:
    """Return the id of a run by its number."""
    return f"{number:04x}{number * 2654435761 % 2**32:08x}"


def fill(repo: Repository, count: int) -> None:
    """Publish runs of 12 steps. Every tenth failed."""
    observed = repo.objects.put_record(Observed(facts={"kernel": "6.1"}))
    for number in range(count):
        config = f"lr: {number}\nsteps: 12\n".encode()
        code = planted.packed(repo, {b"train.py": b"print(1)\n", b"config.yaml": config})
        record = planted.snapshot(code, config=planted.packed(repo, {b"config.yaml": config}))
        snapshot = planted.publish(repo, record, created_s=_BEGIN_S + number, author="Ada", message=f"try {number}")
        spec, run = LaunchSpec(command=("train.py",), trainer="python"), run_id(number)
        created_s = _BEGIN_S + number
        runs.publish(repo, Run(id=run, snapshot=snapshot, spec=spec, created_s=created_s, name=f"run {number}"))
        planted.begin(repo, run, observed=observed)
        steps = [Step(step=step, quantities={"loss": (1.0 / step).hex()}, total=12) for step in range(1, 13)]
        writer = planted.AttemptWriter(repo, run, 1)
        writer.append("0", RankStarted(rank=0, world=1, pid=1), *steps)
        outcome = "failed" if number % 10 == 9 else "finished"
        writer.append(NODE, AttemptEnded(outcome=outcome, exit_code=0))  # type: ignore[arg-type]
    reindex.fill(repo)

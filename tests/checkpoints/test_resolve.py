"""RUN, RUN@STEP, RUN@STEP-ATTEMPT and digests: their checkpoints, and the errors for missing checkpoints."""

import msgspec
import pytest

from m5ws.checkpoints.resolve import resolve
from m5ws.errors import AmbiguousId, M5Error, NotFound, UsageError
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.repository.references import checkpoints, outputs
from m5ws.repository.repository import Repository
from tests.support.records import planted

RUN = "7c1d00000001"


class Published(msgspec.Struct):
    """Checkpoints of a run, by name."""

    repo: Repository
    digests: dict[str, str]


@pytest.fixture
def published(repo: Repository) -> Published:
    """Publish steps 2 and 4 of attempt 1, 4 and 6 of attempt 2, and, too late, 6 of attempt 1."""
    for run in (RUN, "7c1d00000002"):
        planted.run(repo, run)
    digests = _publish(repo, 1, (2, 4), {})
    inherits = tuple(digests)
    late = _record(repo, 1, 6)
    digests |= _publish(repo, 2, (4, 6), digests, inherits)
    name = checkpoints.name(6, 1)
    repo.store.create(checkpoints.key(RUN, name), f"{late}\n".encode())
    return Published(repo, {**digests, name: late})


def _publish(
    repo: Repository, attempt: int, steps: tuple[int, ...], before: dict[str, str], inherits: tuple[str, ...] = ()
) -> dict[str, str]:
    planted.begin(repo, RUN, attempt, inherits=inherits)
    digests = {}
    for step in steps:
        record = repo.objects.get_record(_record(repo, attempt, step), Checkpoint)
        digests[checkpoints.name(step, attempt)] = checkpoints.publish(repo, record)
    return digests


def _record(repo: Repository, attempt: int, step: int) -> str:
    content = repo.objects.put_record(Content(format="dcp/1", world=1))
    return repo.objects.put_record(Checkpoint(run=RUN, snapshot="0" * 64, attempt=attempt, step=step, content=content))


@pytest.mark.parametrize(
    ("text", "step", "attempt"),
    [
        (RUN, 6, 2),
        (f" {RUN.upper()} ", 6, 2),
        (f"{RUN}@2", 2, 1),
        (f"{RUN}@4", 4, 2),
        (f"{RUN}@4-1", 4, 1),
        (f"{RUN}@0000000004-0002", 4, 2),
        ("7c1d00000001@0004", 4, 2),
    ],
)
def test_checkpoint_names_and_digests_resolve_to_the_checkpoint(
    published: Published, text: str, step: int, attempt: int
) -> None:
    checkpoint = resolve(published.repo, text)
    name = checkpoints.name(step, attempt)
    assert (checkpoint.run, checkpoint.name, checkpoint.digest) == (RUN, name, published.digests[name])
    assert resolve(published.repo, checkpoint.digest) == checkpoint
    assert resolve(published.repo, str(checkpoint)) == checkpoint


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (f"{RUN}@5", NotFound, " 5; it has 2, 4, 6"),
        (f"{RUN}@2-2", NotFound, " 2-2"),
        (f"{RUN}@6-1", UsageError, checkpoints.name(6, 1)),
        (f"{RUN}@", UsageError, f"'{RUN}@'"),
        (f"{RUN}@newest", UsageError, f"'{RUN}@newest'"),
        ("7c1d", AmbiguousId, "7c1d00000001"),
        ("7c1d00000002", NotFound, "run 7c1d00000002"),
        ("ffff@2", NotFound, "'ffff'"),
        ("f" * 64, NotFound, ""),
    ],
)
def test_an_unknown_checkpoint_name_raises_an_error_with_a_hint(
    published: Published, text: str, error: type[M5Error], says: str
) -> None:
    with pytest.raises(error) as caught:
        resolve(published.repo, text)
    assert says in str(caught.value) and caught.value.hint


def test_a_checkpoint_that_does_not_count_resolves_only_by_full_name_on_request(published: Published) -> None:
    name = checkpoints.name(6, 1)
    assert resolve(published.repo, f"{RUN}@6-1", counting=False).name == name
    assert resolve(published.repo, f"{RUN}@6", counting=False).name == checkpoints.name(6, 2)
    late = published.digests[name]
    assert resolve(published.repo, late, counting=False).name == name
    with pytest.raises(UsageError, match=name):
        resolve(published.repo, late)


def test_a_record_that_was_never_published_has_no_name(published: Published) -> None:
    with pytest.raises(NotFound, match="0000000009-0002"):
        resolve(published.repo, _record(published.repo, 2, 9))


def test_the_list_of_steps_contains_each_step_once(published: Published) -> None:
    with pytest.raises(NotFound, match="it has 2, 4, 6"):
        resolve(published.repo, f"{RUN}@9")


def test_a_run_with_only_output_files_gets_a_hint_to_m5ws_outputs(published: Published) -> None:
    with pytest.raises(NotFound) as before:
        resolve(published.repo, "7c1d00000002")
    published.repo.store.create(outputs.key("7c1d00000002", outputs.name(1)), b"")
    with pytest.raises(NotFound) as caught:
        resolve(published.repo, "7c1d00000002")
    assert "m5ws outputs 7c1d00000002" in caught.value.hint and "outputs" not in before.value.hint

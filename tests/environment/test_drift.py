"""Drift and its table: every difference is reported, and only evidence makes one harmless."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.environment.drift import conflicts, drift, is_unverified, rule, table, unmet, worst
from m5ws.records.environment import Declared, Observed, Origin
from m5ws.records.verdict import Change
from m5ws.training.runtime.facts import versions

names = st.text(string.ascii_lowercase + ".-", min_size=1, max_size=12)
environments = st.builds(
    Observed,
    facts=st.dictionaries(names, st.none() | st.text(max_size=5), max_size=6),
    distributions=st.dictionaries(names, st.text(max_size=5), max_size=6),
)


def one(old: dict[str, str | None], new: dict[str, str | None]) -> Change:
    (change,) = drift(Observed(facts=old), Observed(facts=new))
    return change


def rating(part: str, name: str) -> str:
    return rule(part, name).rating


# --- the table -----------------------------------------------------------------------------------------------------


def test_every_rule_has_a_reason_and_a_source() -> None:
    for entry in table().rule:
        assert entry.why, entry
        assert not entry.why.endswith("."), entry
        assert entry.source.startswith(("https://", "measured: ", "docs/", "tests/")), entry


def test_no_drift_rule_is_hidden_by_an_earlier_rule() -> None:
    for index, entry in enumerate(table().rule):
        sample = entry.pattern.replace("*", "zz")
        part = entry.part.replace("*", "zz")
        assert table().rule.index(rule(part, sample)) == index, entry


def test_the_last_rule_matches_everything() -> None:
    assert (table().rule[-1].part, table().rule[-1].pattern, table().rule[-1].rating) == ("*", "*", "can")


RATED = {
    "can": "torch distribution.torch distribution.numpy distribution.deepspeed distribution.triton "
    "distribution.nvidia-nccl-cu12 distribution.unheard-of nccl nccl.installed loaded.nccl cpu.flags gpu.driver python "
    "unheard.of m5ws.code aws-ofi-nccl python.path.outside variable.FI_PROVIDER mkl "
    "nccl.algorithms nccl.protocols nccl.channels nccl.rings nccl.trees nccl.network",
    "does": "threads cpu.capability world variable.ONEDNN_MAX_CPU_ISA variable.OPENBLAS_CORETYPE",
    "cannot": "kernel distribution.ruff distribution.types-requests variable.NCCL_DEBUG rebuilt nccl.log "
    "variable.TORCH_EXTENSIONS_DIR variable.CUDA_VISIBLE_DEVICES",
}


@pytest.mark.parametrize("expected", RATED)
def test_each_environment_fact_has_its_expected_rating(expected: str) -> None:
    assert {name: rating("environment", name) for name in RATED[expected].split()} == dict.fromkeys(
        RATED[expected].split(), expected
    )


@pytest.mark.parametrize("name", ["deepspeed", *versions()])
def test_facts_of_torch_are_never_harmless(name: str) -> None:
    assert rating("environment", name) != "cannot"


# --- differences ---------------------------------------------------------------------------------------------------


@given(environments)
def test_an_environment_does_not_drift_from_itself(environment: Observed) -> None:
    assert drift(environment, environment) == ()


@given(environments, environments)
def test_drift_is_found_both_ways(a: Observed, b: Observed) -> None:
    forth = {(change.name, change.old, change.new, change.rating) for change in drift(a, b)}
    back = {(change.name, change.new, change.old, change.rating) for change in drift(b, a)}
    assert forth == back


@given(environments, environments)
def test_every_difference_of_two_environments_is_named_once(a: Observed, b: Observed) -> None:
    facts = {name for name in a.facts | b.facts if a.facts.get(name) != b.facts.get(name)}
    installed = {name for name in a.distributions | b.distributions
                 if a.distributions.get(name) != b.distributions.get(name)}  # fmt: skip
    expected = sorted([*facts, *(f"distribution.{name}" for name in installed)])
    assert sorted(change.name for change in drift(a, b)) == expected


def test_the_gravest_change_comes_first() -> None:
    old: dict[str, str | None] = {"kernel": "5", "threads": "1", "nccl": "2.26"}
    new: dict[str, str | None] = {"kernel": "6", "threads": "2", "nccl": "2.27"}
    changes = drift(Observed(facts=old), Observed(facts=new))
    assert [(change.name, change.rating) for change in changes] == [
        ("threads", "does"),
        ("nccl", "can"),
        ("kernel", "cannot"),
    ]
    assert worst(changes) == "does"
    assert worst(changes[2:]) == "cannot"
    assert worst(()) is None


def test_a_fact_recorded_on_one_side_only_is_rated_can() -> None:
    change = one({}, {"threads": "2"})
    assert (change.rating, change.detail) == ("can", "only one side recorded it")
    assert one({"threads": None}, {"threads": "2"}).rating == "does"
    assert one({}, {"rebuilt": "virtual environment 0"}).rating == "cannot"


def test_a_missing_variable_counts_as_not_set() -> None:
    assert one({}, {"variable.MKL_CBWR": "COMPATIBLE"}).rating == "does"


# --- under level portable ------------------------------------------------------------------------------------------

OLD: dict[str, str | None] = {"cpu.model": "a", "cpu.flags": "1", "cpu.count": "2", "threads": "1"}
NEW: dict[str, str | None] = {"cpu.model": "b", "cpu.flags": "2", "cpu.count": "2", "threads": "2"}
KEPT: dict[str, str | None] = {"cpu.portable": "x86-64-v3"}


def ratings(old: dict[str, str | None], new: dict[str, str | None]) -> dict[str, str]:
    return {change.name: change.rating for change in drift(Observed(facts=old), Observed(facts=new))}


def test_another_processor_cannot_change_bits_if_both_sides_are_portable() -> None:
    assert ratings(OLD | KEPT, NEW | KEPT) == {"cpu.model": "cannot", "cpu.flags": "cannot", "threads": "does"}
    assert "level portable" in (one(KEPT | {"cpu.model": "a"}, KEPT | {"cpu.model": "b"}).detail or "")


@pytest.mark.parametrize(("old", "new"), [({}, {}), (KEPT, {"cpu.portable": None}), ({"cpu.portable": None},) * 2])
def test_another_processor_can_change_bits_unless_both_sides_are_portable(
    old: dict[str, str | None], new: dict[str, str | None]
) -> None:
    rated = ratings(OLD | old, NEW | new)
    assert (rated["cpu.model"], rated["cpu.flags"]) == ("can", "can")
    assert rated.get("cpu.portable") == ("does" if old and new != old else None)


def test_the_number_of_processors_cannot_change_bits_if_both_sides_are_portable() -> None:
    assert ratings(KEPT | {"cpu.count": "2"}, KEPT | {"cpu.count": "8"}) == {"cpu.count": "cannot"}


# --- declared and not there ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "met"), [("2.27.5", True), ("2.27", True), ("2", True), ("2.2", False), ("2.28", False)]
)
def test_a_wanted_version_matches_a_more_exact_version(wanted: str, met: bool) -> None:
    assert (unmet(Declared(wanted={"nccl": wanted}), Observed(facts={"nccl": "2.27.5"})) == ()) is met


def test_wanted_versions_are_compared_with_facts_and_distributions() -> None:
    facts: dict[str, str | None] = {
        "torch.cuda": "13.0",
        "efa.driver": None,
        "nccl": None,
        "nccl.installed": "2.27.5 (x)",
    }
    wanted = {"cuda": "13.0", "efa": "2.13", "nccl": "2.27", "numpy": "2.4"}
    (change,) = unmet(Declared(wanted=wanted), Observed(facts=facts, distributions={"numpy": "2.4.6"}))
    assert (change.part, change.name, change.old, change.new) == ("declared", "efa", "2.13", None)


_A, _B = (f"train@sha256:{letter * 64}" for letter in "ab")
_STATED: tuple[tuple[str | None, bool], ...] = (
    (None, False), (_A, True), (f"docker.io/library/{_A}", True), (_B, False), ("train:2", False), ("train", False)
)  # fmt: skip
"""Images that a runtime states, and True if each is the image _A."""


@pytest.mark.parametrize(("stated", "is_met"), _STATED)
@pytest.mark.parametrize("claimed", [None, _A, _B, "train:2"])
def test_a_declared_image_is_met_by_its_digest_and_never_in_silence_by_a_variable(
    stated: str | None, is_met: bool, claimed: str | None
) -> None:
    observed = Observed(facts={"container.image": stated, "container.image.unverified": claimed})
    is_notice = stated is None and claimed == _A
    assert is_unverified(Declared(image=_A), observed) is is_notice
    differences = unmet(Declared(image=_A), observed)
    assert [(change.name, change.old, change.new) for change in differences] == (
        [] if is_met or is_notice else [("image", _A, stated)]
    )
    assert unmet(Declared(), observed) == () and not is_unverified(Declared(), observed)


def test_one_image_under_two_names_or_from_two_sources_cannot_change_bits() -> None:
    kubernetes: dict[str, str | None] = {
        "container": "kubernetes", "container.image": f"docker.io/library/{_A}", "container.image_id": None,
        "container.source": "x", "container.image.source": "x", "container.image.unverified": None,
    }  # fmt: skip
    ecs = kubernetes | {
        "container": "ecs", "container.image": _A, "container.image_id": "sha256:1", "container.source": "y",
        "container.image.source": "y", "container.image.unverified": _B,
    }  # fmt: skip
    assert set(ratings(kubernetes, ecs)) == set(kubernetes) and set(ratings(kubernetes, ecs).values()) == {"cannot"}
    other = ratings(kubernetes, ecs | {"container.image": _B})
    assert {name for name, rated in other.items() if rated == "can"} == {
        "container.image", "container.image_id", "container.image.unverified"
    }  # fmt: skip
    # The same name without a digest can be of any image.
    tagged: dict[str, str | None] = {"container.image": "train:2", "container.image_id": "sha256:1"}
    assert ratings(tagged, tagged | {"container.image_id": "sha256:2"}) == {"container.image_id": "can"}


# --- origins, and loaded libraries ---------------------------------------------------------------------------------


def test_one_version_from_two_sources_is_a_difference() -> None:
    archive = Origin(kind="archive", url="https://example.org/a.whl", hash="a" * 64)
    inside = Origin(kind="editable", url="libs/a", inside=True)

    def environment(origins: dict[str, Origin] | None, version: str = "1") -> Observed:
        return Observed(distributions={"a": version}, origins=origins)

    (change,) = drift(environment({}), environment({"a": archive}))
    assert (change.name, change.old, change.rating) == ("origin.a", "an index", "can")
    # No origins on one side; a different version is reported alone; files of the snapshot, installed in two ways.
    assert drift(environment(None), environment({"a": archive})) == ()
    assert [c.name for c in drift(environment({}), environment({"a": archive}, "2"))] == ["distribution.a"]
    copied = Origin(kind="directory", url="libs/a", inside=True)
    assert drift(environment({"a": inside}), environment({"a": copied})) == ()


@pytest.mark.parametrize(
    ("fact", "loaded", "distribution", "installed", "reported"),
    [
        ("nccl", "2.26.2", "nvidia-nccl-cu13", "2.27.5", "2.26.2"),
        ("nccl", "2.27.5", "nvidia-nccl-cu13", "2.27.5", None),
        ("cudnn", "91002", "nvidia-cudnn-cu12", "9.10.2.21", None),
        ("cudnn", "8902", "nvidia-cudnn-cu11", "8.9.2.26", None),
        ("cudnn", "91100", "nvidia-cudnn-cu12", "9.10.2.21", "9.11.0"),
        ("nccl", "2.27.5", "unrelated", "1", None),
    ],
)
def test_a_loaded_library_that_differs_from_its_distribution_is_named(
    fact: str, loaded: str, distribution: str, installed: str, reported: str | None
) -> None:
    files = {f"loaded.{fact}": "{environment}/lib/some.so", f"owner.{fact}": distribution}
    observed = Observed(facts={fact: loaded, **files}, distributions={distribution: installed})
    changes = [(change.name, change.old, change.new, change.rating) for change in conflicts(observed)]
    assert changes == ([] if reported is None else [(f"loaded {fact}", installed, reported, "can")])
    # Drift reports only conflicts that the pinned environment did not have.
    assert not any(change.name.startswith("loaded ") for change in drift(observed, observed))


def test_a_library_without_a_file_of_its_own_is_not_compared() -> None:
    assert conflicts(Observed(facts={"nccl": "2.26.2"}, distributions={"nvidia-nccl-cu13": "2.27.5"})) == ()


def test_every_pair_of_loaded_and_installed_library_has_a_reason_and_a_source() -> None:
    for pair in table().pair:
        assert pair.why and pair.source.startswith("https://"), pair

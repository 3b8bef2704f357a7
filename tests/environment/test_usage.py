"""A difference in a distribution or library that no rank loaded cannot change bits. Other ratings stay the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.environment import usage
from m5ws.environment.drift import drift
from m5ws.environment.usage import EnvironmentSide, Usage
from m5ws.records.environment import Observed

_PLACES = st.sampled_from(["a", "b", "shared/a", "shared/b", "shared/a_c", "a.libs", "/lib/liba.so"])
_NAMES = st.sampled_from(["a", "b", "c", "torch", "nvidia-cuda-nvcc-cu12"])
_environments = st.builds(
    Observed,
    distributions=st.dictionaries(_NAMES, st.sampled_from(["1", "2"])),
    provides=st.none() | st.dictionaries(_NAMES, st.sets(_PLACES | _NAMES, min_size=1).map(tuple)),
)
_usages = st.none() | st.builds(Usage, places=st.frozensets(_PLACES | st.sampled_from(["shared"])))


def _rate(old: EnvironmentSide, new: EnvironmentSide) -> dict[str, str]:
    changes = usage.rate_unused(drift(old.observed, new.observed), old, new)
    return {change.name.removeprefix("distribution."): change.rating for change in changes}


@given(_environments, _environments, _usages, _usages)
def test_only_changes_to_distributions_that_were_not_loaded_are_harmless(
    old: Observed, new: Observed, first: Usage | None, second: Usage | None
) -> None:
    before = {change.name.removeprefix("distribution."): change.rating for change in drift(old, new)}
    after = _rate(EnvironmentSide(observed=old, usage=first), EnvironmentSide(observed=new, usage=second))
    assert before.keys() == after.keys()
    loaded = set[str]() if second is None else set(second.places)
    for name, rating in after.items():
        sides = [side for side in (old, new) if name in side.distributions]
        known = first is not None and all(name in (side.provides or {}) for side in sides)
        places = {place for side in sides for place in (side.provides or {}).get(name, ())}
        used = loaded | (set(first.places) if first is not None else set())
        touched = any(a == b or a.startswith(f"{b}/") or b.startswith(f"{a}/") for a in places for b in used)
        harmless = known and not touched and not name.startswith("nvidia-cuda-nvcc")
        assert rating == ("cannot" if harmless else before[name]), name


def test_distributions_in_a_shared_folder_are_rated_separately() -> None:
    provides: dict[str, tuple[str, ...]] = {"google-auth": ("google/auth",), "protobuf": ("google/protobuf",)}
    versions = [Observed(distributions=dict.fromkeys(provides, version), provides=provides) for version in "12"]
    ran = Usage(places=frozenset({"google/protobuf"}))
    assert _rate(EnvironmentSide(observed=versions[0], usage=ran), EnvironmentSide(observed=versions[1])) == {
        "google-auth": "cannot",
        "protobuf": "can",
    }


def test_a_new_distribution_that_provides_an_imported_module_can_change_bits() -> None:
    old = Observed(distributions={"yaml": "1"}, provides={"yaml": ("yaml",)})
    new = Observed(distributions={"yaml": "1", "other": "1"}, provides={"yaml": ("yaml",), "other": ("yaml",)})
    ran = Usage(places=frozenset({"yaml"}))
    assert _rate(EnvironmentSide(observed=old, usage=ran), EnvironmentSide(observed=new)) == {"other": "can"}


_NETWORK = ["libfabric", "efa.driver", "efa.installer", "aws-ofi-nccl", "variable.FI_PROVIDER", "variable.OFI_NCCL_X"]


@pytest.mark.parametrize("name", _NETWORK)
def test_a_cloud_network_fact_counts_if_ranks_loaded_its_library(name: str) -> None:
    old, new = Observed(facts={name: None}), Observed(facts={name: "1"})
    library = "loaded.aws-ofi-nccl" if "ofi" in name.lower() else "loaded.libfabric"
    unused, used = Usage(), Usage(libraries=frozenset({library}))
    assert _rate(EnvironmentSide(observed=old, usage=unused), EnvironmentSide(observed=new)) == {name: "cannot"}
    assert _rate(EnvironmentSide(observed=old, usage=used), EnvironmentSide(observed=new)) == {name: "can"}
    assert _rate(EnvironmentSide(observed=old, usage=unused), EnvironmentSide(observed=new, usage=used)) == {
        name: "can"
    }
    assert _rate(EnvironmentSide(observed=old), EnvironmentSide(observed=new, usage=unused)) == {name: "can"}

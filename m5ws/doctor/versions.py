"""Installed versions against the ranges of m5ws's own metadata, which pyproject.toml declares."""

import platform
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from m5ws.records.check import Check, State
from m5ws.wording.checks import INSTALL

PACKAGE = "m5ws"
EXTRAS = ("train", "deepspeed", "dvc", "mlflow", "s3", "kubernetes", "tokenizer")
_WORST_FIRST: tuple[State, ...] = ("broken", "missing", "not needed", "ok")


def check_python(name: str) -> Check:
    """Check the version of this interpreter."""
    version, wanted = platform.python_version(), metadata.metadata(PACKAGE)["Requires-Python"]
    passed = SpecifierSet(wanted).contains(version, prereleases=True)
    return Check(name, "ok" if passed else "broken", f"{version} ({wanted})")


def check_libraries(name: str) -> Check:
    """Check the libraries of the extra `name`, or of m5ws itself. A missing library of an extra is not needed."""
    extra = name if name != PACKAGE else ""
    requirements = map(Requirement, metadata.requires(PACKAGE) or ())
    states = [_library(each, extra) for each in requirements if _belongs(each, extra)]
    # Libraries of m5ws itself are listed only if they fail, because there are many.
    listed = [text for state, text in states if extra or state != "ok"] or [metadata.version(PACKAGE)]
    worst = min((state for state, _ in states), key=_WORST_FIRST.index)
    package = f"{PACKAGE}[{extra}]" if extra else PACKAGE
    remedy = INSTALL.format(package=package) if worst in ("broken", "missing") else ""
    return Check(name, worst, ", ".join(listed), remedy)


def _belongs(requirement: Requirement, extra: str) -> bool:
    return requirement.marker.evaluate({"extra": extra}) if requirement.marker else not extra


def _library(requirement: Requirement, extra: str) -> tuple[State, str]:
    """Return the state of a library, and its version with the supported range."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return "not needed" if extra else "missing", f"{requirement.name} is not installed"
    # A local version (`+cu130`) is in the range of its public version.
    passed = requirement.specifier.contains(version, prereleases=True)
    return "ok" if passed else "broken", f"{requirement.name} {version} ({requirement.specifier})"

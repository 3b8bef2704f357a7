"""`reproduce --env rebuild`: the recipe of the environment in which a run began.

`recipe` reads the recorded environment. It refuses distributions that cannot be installed again, all in one error,
before anything is installed. `virtual_environments` builds it; the replay runs there, and its drift is judged as usual.
`lock` returns the recorded environment as a file for pip or conda.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from m5ws.environment import recorded
from m5ws.environment.observe.conda import CONDA
from m5ws.errors import M5Error, NotFound, UsageError
from m5ws.progress import Progress
from m5ws.records.base import Digest
from m5ws.records.environment import Observed, Origin
from m5ws.records.recipe import Recipe, Requirement
from m5ws.records.tree import Entry, Tree
from m5ws.repository.files import trees
from m5ws.repository.files.materialise import materialise
from m5ws.repository.references import runs, snapshots
from m5ws.repository.repository import Repository

_M5WS = "m5ws"
_MASK = "***"
# Text from records becomes arguments of command lines, so each must have the form of its kind.
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][\w.+!-]*", re.ASCII)
# pip expands variables in `${NAME}`, and continues a line that ends with a backslash.
_URL = re.compile(r"[a-z][a-z0-9+.-]*://((?!\$\{|\\)[!-~])+")
_COMMIT = re.compile(r"[0-9A-Za-z][\w.-]*", re.ASCII)
_FOLDER = re.compile(r"[0-9A-Za-z_][\w./-]*", re.ASCII)
_PYTHON = re.compile(r"\d+\.\d+\.[0-9A-Za-z+]+", re.ASCII)
_CONDA_HINT = """Make the environment again, install m5ws in it, and reproduce there without `--env rebuild`:
  m5ws show {run} --lock conda > conda.txt
  m5ws show {run} --lock pip > pip.txt
  conda create --yes --prefix ./conda-{run} --file conda.txt
  ./conda-{run}/bin/python -m pip install --no-deps --requirement pip.txt"""


class NotRebuildable(M5Error):
    """Distributions of an environment cannot be installed again."""

    def __init__(self, run: str, reasons: Mapping[str, str]) -> None:
        lines = (f"  {name}: {why}" for name, why in reasons.items())
        super().__init__("\n".join((f"the environment of run {run} cannot be rebuilt:", *lines)))
        self.hint = (
            "Install these distributions by hand in a separate environment, and the other distributions as `m5ws show` "
            "lists them. Reproduce there without `--env rebuild`. [environment] image pins everything in a container."
        )


def recipe(
    repo: Repository, run: str, snapshot_id: Digest | None = None, replacement: Observed | None = None
) -> Recipe:
    """Return the recipe of the environment in which `run` began, or of `replacement`.

    Distributions from the workspace are installed from the run's snapshot, or from the replay's `snapshot_id`. Raises
    NotRebuildable, UsageError for a conda environment or a pinned container image, NotFound if no environment was
    recorded.
    """
    original = runs.load(repo, run)
    snapshot = snapshots.load(repo, snapshot_id or original.snapshot)
    declared = snapshots.load(repo, original.snapshot).declared
    if declared.image is not None:
        raise UsageError(
            f"run {run} is pinned to the container image {declared.image}, and --env rebuild makes no images",
            hint="Leave out `--env rebuild`: m5ws starts the image.",
        )
    pinned = replacement or recorded.of_run(repo, run)
    python = pinned.facts.get("python")
    if python is None or not _PYTHON.fullmatch(python) or not pinned.distributions:
        raise NotFound(
            f"run {run} did not record its installed distributions",
            hint="Only environments of `m5ws run` can be rebuilt.",
        )
    if packages := _conda_lines(pinned):
        raise UsageError(
            f"run {run} began in an environment with {len(packages)} packages of conda, and m5ws starts no conda",
            hint=_CONDA_HINT.format(run=run),
        )
    requirements = _requirements(run, pinned, trees.load(repo.objects, snapshot.code.tree))
    inside = any(requirement.path for requirement in requirements)
    return Recipe(python=python, requirements=requirements, code=snapshot.code.tree if inside else None)


def lock(repo: Repository, run: str, tool: str) -> str:
    """Return the packages that `conda` or `pip` had installed when `run` began, as a file for the same tool.

    Paths are below a checkout of the snapshot. Raises NotRebuildable for distributions that pip cannot install again.
    """
    pinned = recorded.of_run(repo, run)
    if tool == "conda":
        if not (lines := _conda_lines(pinned)):
            raise UsageError(f"run {run} began in no conda environment", hint="`--lock pip` lists its distributions.")
        return "\n".join(["@EXPLICIT", *lines])
    code = trees.load(repo.objects, snapshots.load(repo, runs.load(repo, run).snapshot).code.tree)
    return "\n".join(each.line for each in _requirements(run, pinned, code))


def write_code(repo: Repository, made: Recipe, target: Path, progress: Progress | None = None) -> None:
    """Write the code of a recipe to a new folder, which builds may write to."""
    if made.code is not None:
        materialise(repo.objects, [trees.load(repo.objects, made.code)], target, progress, read_only=False)


def _conda_lines(pinned: Observed) -> list[str]:
    """Return the line of each package of conda, in the format of `conda list --explicit`."""
    lines = {value for name, value in pinned.facts.items() if name.startswith(CONDA) and value}
    return sorted(lines | {origin.url for origin in (pinned.origins or {}).values() if origin.kind == "conda"} - {""})


def _requirements(run: str, pinned: Observed, code: Tree) -> tuple[Requirement, ...]:
    """Return requirements for pip: all distributions but m5ws and packages of conda. Raises NotRebuildable."""
    requirements, refused = [], dict[str, str]()
    for name, version in sorted(pinned.distributions.items()):
        origin = (pinned.origins or {}).get(name)
        if name == _M5WS or (origin is not None and origin.kind == "conda" and origin.url):
            continue
        if why := _strange(name, version, origin) or _refused(origin, code):
            refused[f"{name} {version}"] = why
        else:
            requirements.append(_requirement(name, version, origin))
    if refused:
        raise NotRebuildable(run, refused)
    return tuple(requirements)


def _requirement(name: str, version: str, origin: Origin | None) -> Requirement:
    if origin is None:
        return Requirement(name=name, version=version)
    if origin.inside:
        return Requirement(name=name, version=version, path=origin.url, editable=origin.kind == "editable")
    below = f"#subdirectory={origin.subdirectory}" if origin.subdirectory else ""
    if origin.kind == "vcs":
        return Requirement(name=name, version=version, url=f"{origin.vcs}+{origin.url}@{origin.commit}{below}")
    return Requirement(name=name, version=version, url=f"{origin.url}{below}", hash=origin.hash)


def _strange(name: str, version: str, origin: Origin | None) -> str | None:
    """Return the reason if a text is not a valid name, version or URL: a shared store can contain any text."""
    words = [(name, _NAME), (version, _VERSION)]
    if origin is not None and not origin.inside and origin.kind != "conda":
        words += [(origin.url, _URL), (origin.commit or "0", _COMMIT), (origin.vcs or "git", _NAME)]
        words += [(origin.subdirectory or "0", _FOLDER), (origin.hash or "0", _COMMIT)]
    wrong = next((text for text, form in words if not form.fullmatch(text)), None)
    return f"its record contains {wrong!r}, which is not valid for pip" if wrong is not None else None


def _refused(origin: Origin | None, code: Tree) -> str | None:
    """Return the reason why a distribution cannot be installed again, None if it can."""
    if origin is None:
        return None
    if origin.kind == "conda":
        return "conda installed it, and pip cannot install conda's build"
    if origin.inside:
        return None if _holds(code.entries, origin.url) else f"the snapshot's code has no {origin.url}"
    if _MASK in origin.url:
        return f"installed from {origin.url}, whose secret was not recorded"
    if origin.local:
        return f"{origin.kind} install from {origin.url}, which is not in the snapshot"
    return None


def _holds(entries: tuple[Entry, ...], path: str) -> bool:
    place = path.encode()
    return path == "." or any(entry.path == place or entry.path.startswith(place + b"/") for entry in entries)

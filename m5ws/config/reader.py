"""`m5ws.toml` as a `Settings` record, or one error with all of its problems and their lines.

A profile has the tables that a team shares. `m5ws.toml` names it as `extends`, and its own keys come first.
An unknown key, a value of the wrong type and a key without effect are errors. If a misspelt key were ignored, the run
would have other settings than its author thinks.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, get_args, get_origin

import msgspec

from m5ws.config import cause_patterns
from m5ws.config.commands import launchers
from m5ws.config.result_patterns import describe_fault
from m5ws.config.settings import WARN_S, BatchCluster, Cluster, HostsCluster, KubernetesCluster, Settings, StoreOptions
from m5ws.control_characters import CONTROL
from m5ws.errors import ConfigError
from m5ws.records.cause import Rule

Key = tuple[str, ...]
Table = Mapping[str, object]
_Rule = tuple[Key, Callable[[Settings], bool], str | Callable[[Settings], str]]
_SHARED = ("store", "mlflow", "clusters")
_CLASS = re.compile(r"(?!unknown$)[A-Za-z][\w-]*")
_FOLDER = re.compile(r"(/(?!\.\.(/|$))[^/:$]+)+")
VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
"""A text that stands for the value of an environment variable."""
_LINES = ("setup", "task")
"""Keys of clusters whose texts may have several lines."""
_NO_PROFILE = "Mount its folder, or update its git submodule, or correct extends. `m5ws init --team PATH` creates one."


def read(path: Path) -> Settings:
    """Return the settings in the file at `path`, with the tables of the profile that the file extends.

    Raises ConfigError, which names every problem and its line. A profile is judged alone, and before the file: a key
    of the profile without effect beside the file's own keys is no problem.
    """
    text, own = _load(path)
    shared: Table = {}
    if isinstance(extends := own.get("extends"), str):
        profile = path.parent / extends
        if not profile.is_file():
            line = line_of(text, ("extends",))
            raise ConfigError(f"{path}:{line}: 'extends': there is no file {profile}", hint=_NO_PROFILE)
        shared = read_profile(profile)
    table = merge(shared, own)
    _refuse(path, text, list(_problems(Settings, table, ())) or list(_useless(own, table, _RULES)))
    return msgspec.convert(table, Settings)


def read_profile(path: Path) -> Table:
    """Return the valid tables of the profile at `path`. Raises ConfigError, as `read` does."""
    text, table = _load(path)
    fault = "a profile has no key {!r}: it has only [store], [mlflow] and [clusters.NAME]"
    problems = [(Key((name,)), fault.format(name)) for name in table if name not in _SHARED]
    problems += _problems(Settings, {name: table[name] for name in _SHARED if name in table}, ())
    _refuse(path, text, problems or list(_useless(table, table, _RULES_OF_PROFILES)))
    return table


def merge(defaults: Table, own: Table) -> Table:
    """Return the keys of both tables, and of the tables in them. A key that both have has the value of `own`."""
    merged = dict(defaults)
    for name, value in own.items():
        before = defaults.get(name)
        merged[name] = merge(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return merged


def is_private(url: str) -> bool:
    """Return True for a store in a directory that is relative to its workspace."""
    return "://" not in url and not PurePosixPath(url).is_absolute()


def _load(path: Path) -> tuple[str, Table]:
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _refuse(path: Path, text: str, problems: Sequence[tuple[Key, str]]) -> None:
    if problems:
        lines = sorted((line_of(text, key), problem) for key, problem in problems)
        raise ConfigError("\n".join(f"{path}:{line}: {problem}" for line, problem in lines))


def line_of(text: str, key: Key) -> int:
    """Return the line of valid TOML on which `key`'s statement begins, from 1.

    A key that is not in the text has the line of the innermost table around it. The shortest prefix that parses and has
    the key ends with the statement. The longest shorter prefix that parses ends before the statement.
    """
    lines = text.splitlines()
    table = tomllib.loads(text)
    while len(key) > 1 and not _present(table, key):
        key = key[:-1]
    start = 1
    for end in range(1, len(lines) + 1):
        try:
            table = tomllib.loads("\n".join(lines[:end]) + "\n")
        except tomllib.TOMLDecodeError:
            continue
        if _present(table, key):
            return start
        start = end + 1
    return 1


def _problems(kind: type[msgspec.Struct], table: Table, parent: Key) -> Iterator[tuple[Key, str]]:
    """Yield each key that `kind` does not have, and each value of another type than its key's."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for name, value in table.items():
        key = (*parent, name)
        if name not in fields:
            yield key, f"unknown key {'.'.join(key)!r}; {_nearest(name, list(fields))}"
        elif isinstance(section := fields[name].type, type) and issubclass(section, msgspec.Struct):
            yield from _problems_of_table(section, value, key)
        elif name == "clusters":
            yield from _problems_of_clusters(value, key)
        elif name == "causes":
            yield from _problems_of_causes(value, key)
        elif wrong := _mismatch(value, fields[name].type):
            yield key, f"{'.'.join(key)!r}: {wrong}"


def _problems_of_table(section: type[msgspec.Struct], value: object, key: Key) -> Iterator[tuple[Key, str]]:
    if isinstance(value, dict):
        yield from _problems(section, value, key)
    else:
        yield key, f"{'.'.join(key)!r} is a table: write [{'.'.join(key)}]"


def _problems_of_clusters(clusters: object, parent: Key) -> Iterator[tuple[Key, str]]:
    """Yield the problems of the clusters, each of whose `engine` decides which keys it has."""
    kinds = {kind.__struct_config__.tag: kind for kind in get_args(Cluster)}
    if not isinstance(clusters, dict):
        yield parent, "'clusters' has a table for each cluster: write [clusters.NAME]"
        return
    for name, cluster in clusters.items():
        key = (*parent, name)
        if not isinstance(cluster, dict) or (kind := kinds.get(str(cluster.get("engine")))) is None:
            yield key, f"{'.'.join(key)!r} needs engine = " + " or ".join(f'"{known}"' for known in kinds)
            continue
        yield from _problems(kind, {name: value for name, value in cluster.items() if name != "engine"}, key)
        if kind is HostsCluster and not cluster.get("hosts"):
            yield key, f"{'.'.join(key)!r} needs hosts, as ssh names them"
        elif missing := [
            field.name for field in msgspec.structs.fields(kind) if field.required and field.name not in cluster
        ]:
            yield key, f"{'.'.join(key)!r} needs {', '.join(missing)}"
        for field, value in cluster.items():
            if field not in _LINES and _is_broken(value):
                yield (*key, field), f"{'.'.join((*key, field))!r} has a line break or a control character"
        if kind is BatchCluster:
            yield from _problems_of_limit(cluster, key)


def _is_broken(value: object) -> bool:
    """Return True for a text with a line break or a control character, in a value of TOML."""
    if isinstance(value, str):
        return "\n" in value or CONTROL.search(value) is not None
    inner = (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_is_broken, inner))


def _problems_of_limit(cluster: Table, key: Key) -> Iterator[tuple[Key, str]]:
    """Yield a time limit of AWS Batch without time before it."""
    limit_s, warn_s = cluster.get("timeout_s"), cluster.get("warn_s", WARN_S)
    if isinstance(limit_s, int) and isinstance(warn_s, int) and 60 <= limit_s <= warn_s:
        yield (*key, "timeout_s"), f"{'.'.join(key)!r} needs a timeout_s above warn_s, which is {warn_s}"


def _problems_of_causes(causes: object, parent: Key) -> Iterator[tuple[Key, str]]:
    """Yield the problems of rules: missing keys, and patterns that cannot be used."""
    if not isinstance(causes, dict):
        yield parent, "'causes' has a table for each class: write [causes.NAME]"
        return
    required = _required(Rule)
    for name, rule in causes.items():
        key = (*parent, name)
        problems = list(_problems_of_table(Rule, rule, key))
        if not _CLASS.fullmatch(name):
            problems.append((key, f"causes.{name!r} is no name of a class: use letters, digits and -, not 'unknown'"))
        if not problems and (missing := ", ".join(field for field in required if field not in rule)):
            problems = [(key, f"{'.'.join(key)!r} needs {missing}")]
        yield from problems
        if not problems and (fault := cause_patterns.describe_fault(rule["patterns"])) is not None:
            place = (*key, "patterns")
            yield place, f"{'.'.join(place)!r}: {fault}"


def _required(kind: type[msgspec.Struct]) -> list[str]:
    """Return the keys that a table must have."""
    return [field.name for field in msgspec.structs.fields(kind) if field.required]


def _mismatch(value: object, kind: object) -> str | None:
    # The type itself, or the type beside None.
    parts = () if get_origin(kind) is tuple else get_args(kind)
    literal = next((part for part in (kind, *parts) if get_origin(part) is Literal), None)
    if literal is not None:
        choices = get_args(literal)
        return None if value in choices else f"{value!r} is not one of {', '.join(map(str, choices))}"
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return str(error)
    return None


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"known here: {', '.join(known)}"


def _present(table: Table, key: Key) -> bool:
    value: object = table
    for name in key:
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return True


def _useless(own: Table, table: Table, rules: Sequence[_Rule]) -> Iterator[tuple[Key, str]]:
    """Yield the keys of `own` that break a rule of the settings in `table`."""
    settings = msgspec.convert(table, Settings)
    for key, wrong, problem in rules:
        if _present(own, key) and wrong(settings):
            yield key, f"{'.'.join(key)!r} {problem if isinstance(problem, str) else problem(settings)}"


def _outside(path: str) -> bool:
    pure = PurePosixPath(path)
    return not path or pure.is_absolute() or ".." in pure.parts or path.startswith("~")


def _describe_data(settings: Settings) -> str:
    """Return the problem of the first path in `data.paths` that is outside of the workspace."""
    path = next(filter(_outside, settings.data.paths))
    name = PurePosixPath(path).name.strip("~.") or "data"
    link = f"`ln -s {path or 'FOLDER'} {name}` makes a link; name the link"
    return f"holds {path!r}, which is not inside the workspace: {link}"


def _ends_pods_early(settings: Settings) -> bool:
    """Return True if the pods of a cluster have no time for a last checkpoint and the end of the processes after it."""
    needed_s = settings.checkpoint.deadline_s + 20
    return any(isinstance(own, KubernetesCluster) and own.grace_s < needed_s for own in settings.clusters.values())


def _misspells_folders(settings: Settings) -> bool:
    """Return True for a folder of containers with two spellings: engines mount two volumes at `/ssd` and `/ssd/`."""
    found = [own for own in settings.clusters.values() if isinstance(own, BatchCluster | KubernetesCluster)]
    folders = [folder for own in found for folder in (*own.shared, *own.mounts)]
    pods = (own for own in found if isinstance(own, KubernetesCluster))
    folders += [folder for own in pods for folder in (own.scratch, *own.claims)]
    return any(not _FOLDER.fullmatch(folder) or str(PurePosixPath(folder)) != folder for folder in folders)


_RULES: tuple[_Rule, ...] = (
    (("store", "url"), lambda s: not s.store.url, "is empty"),
    *(
        (("store", name), lambda s: not s.store.url.startswith("s3://"), "does nothing: 'store.url' is not s3://…")
        for name in StoreOptions.__struct_fields__
    ),
    (
        ("store", "sse_kms_key"),
        lambda s: s.store.sse not in ("aws:kms", "aws:kms:dsse"),
        "does nothing unless 'store.sse' is aws:kms or aws:kms:dsse",
    ),
    (
        ("store", "cache_limit"),
        lambda s: s.store.cache_limit_bytes is None,
        "is not a size: write bytes, or a text such as '50 GiB'",
    ),
    (("store", "cache"), lambda s: s.store.cache_limit_bytes == 0, "does nothing while 'store.cache_limit' is 0"),
    (
        ("config", "files"),
        lambda s: any(map(_outside, s.config.files)),
        "holds a path that is not inside the workspace",
    ),
    *(
        (key, _ends_pods_early, "needs a grace_s of [clusters.NAME] that is 20 s longer than 'checkpoint.deadline_s'")
        for key in (("clusters",), ("checkpoint", "deadline_s"))
    ),
    (("clusters",), _misspells_folders, "has a folder of containers that is relative, or has a variable or a final /"),
    (("data", "paths"), lambda s: any(map(_outside, s.data.paths)), _describe_data),
    (("data", "stay"), lambda s: any(map(_outside, s.data.stay)), "holds a path that is not inside the workspace"),
    (("data", "stay"), lambda s: not s.data.dvc, "does nothing while 'data.dvc' is false"),
    (
        ("data", "s3"),
        lambda s: any(_outside(each.path) for each in s.data.s3),
        "holds a path that is not inside the workspace",
    ),
    (
        ("data", "s3"),
        lambda s: not all(each.url.startswith("s3://") for each in s.data.s3),
        "holds a url that is not s3://bucket/prefix",
    ),
    (
        ("tokenizer", "path"),
        lambda s: s.tokenizer.path is not None and _outside(s.tokenizer.path),
        "is not inside the workspace",
    ),
    (("tokenizer", "probe"), lambda s: s.tokenizer.path is None, "does nothing without 'tokenizer.path'"),
    (("run", "directory"), lambda s: _outside(s.run.directory), "is not inside the workspace"),
    (("run", "outputs"), lambda s: any(map(_outside, s.run.outputs)), "holds a path that is not inside the workspace"),
    (
        ("run", "results"),
        lambda s: describe_fault(s.run.results) is not None,
        lambda s: describe_fault(s.run.results) or "",
    ),
    (("run", "trainer"), lambda s: s.run.trainer == "python" and s.run.nproc > 1, "starts 1 process: remove nproc"),
    *(
        (
            ("run", name),
            lambda s: launchers.read(s.run.command).starter is not None,
            "contradicts the launcher in command",
        )
        for name in ("trainer", "nproc")
    ),
    (("run", "restart", "same_cause"), lambda s: not s.run.restart.max, "does nothing while 'run.restart.max' is 0"),
    *(
        (
            ("run", "loss", "stop"),
            lambda s, name=name: name in s.run.loss.stop and getattr(s.run.loss, name) is None,
            f"holds {name!r}, which does nothing without 'run.loss.{name}'",
        )
        for name in ("jump", "flat")
    ),
    (
        ("notify", "urls"),
        lambda s: not all(map(VARIABLE.fullmatch, s.notify.urls)),
        'holds a URL: m5ws.toml is part of snapshots, so set a variable to the URL, and write "${NAME}"',
    ),
    (("notify", "on"), lambda s: not s.notify.urls + s.notify.command, "does nothing without urls or command"),
    *(
        (("determinism", name), lambda s: s.determinism.level == "off", "does nothing while 'determinism.level' is off")
        for name in ("python_hash_seed", "tf32", "fill_uninitialized", "cublas_workspace", "nccl_algo")
    ),
    *(
        (("mlflow", name), lambda s: not s.mlflow.enabled, "does nothing while 'mlflow.enabled' is false")
        for name in ("tracking_uri", "experiment", "store_id")
    ),
)
_PRIVATE = "is relative, and gives each workspace another store: write an absolute path, or s3://bucket/prefix"
_RULES_OF_PROFILES = (*_RULES, (("store", "url"), lambda s: is_private(s.store.url), _PRIVATE))

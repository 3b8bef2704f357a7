"""Sentences of refused files and hosts under `[run] inputs = "pinned"`."""

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from m5ws.wording.lists import list_names

_RECORDED = 'or set [run] inputs = "recorded"'


def describe(refused: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a sentence with the remedy for each kind of refusals: to `read` or `write` a file, to `connect` to a host.

    Each refusal is a kind and a name.
    """
    names = dict[str, list[str]]()
    for kind, name in refused:
        names.setdefault(kind, []).append(name)
    if read := names.get("read"):
        yield f"not pinned: {list_names(read)}. {_pin(PurePosixPath(read[0]))}, {_RECORDED}"
    if written := names.get("write"):
        places = "Write below the current directory or TMPDIR"
        yield f"not in the work directory: {list_names(written)}. {places}, {_RECORDED}"
    if hosts := names.get("connect"):
        pin = "Download the files before the run, and add them to [data] or [tokenizer] in m5ws.toml"
        yield f"not hosts of the run: {list_names(hosts)}. {pin}, {_RECORDED}"


def _pin(path: PurePosixPath) -> str:
    folder = path.parent if path.suffix else path
    name = folder.name or "data"
    return (
        f"Run `ln -s {folder} {name}` in the workspace, add {name} to [tokenizer] path or [data] paths in m5ws.toml, "
        f"and let the script read {name}"
    )

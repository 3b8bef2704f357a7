"""Sentences of refused files and hosts under `[run] inputs = "pinned"`."""

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from m5ws.records.reads import HOST, READ, WRITTEN
from m5ws.wording.lists import list_names

_SENTENCES = {
    READ: "not pinned: {names}. Run `ln -s {folder} {link}` in the workspace, add {link} to [tokenizer] path or "
    "[data] paths in m5ws.toml, and let the script read {link}",
    WRITTEN: "not in the work directory: {names}. Write below the current directory or TMPDIR",
    HOST: "not hosts of the run: {names}. Download the files before, and add them to [data] or [tokenizer]",
}


def describe(refused: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a sentence with the remedy for each kind of refusal: a kind of note, and a path or host."""
    names = {kind: dict[str, None]() for kind in _SENTENCES}
    for kind, name in refused:
        names.get(kind, {})[name] = None
    for kind, listed in ((kind, list(found)) for kind, found in names.items() if found):
        first = PurePosixPath(listed[0])
        folder = first.parent if first.suffix else first
        text = _SENTENCES[kind].format(names=list_names(listed), folder=folder, link=folder.name or "data")
        yield f'{text}; or set [run] inputs = "recorded"'

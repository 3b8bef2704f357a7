"""Sentences of refused files and hosts under `[run] inputs = "pinned"`."""

from pathlib import PurePosixPath

_RECORDED = 'or set [run] inputs = "recorded"'


def describe_refusal(kind: str, name: str) -> str:
    """Return the refusal to `read` or `write` the file `name`, or to `connect` to the host `name`, with the remedy."""
    if kind == "connect":
        return (
            f"refused: {name} is no host of the run. Download the data before, and add the files to [data] or "
            f"[tokenizer] in m5ws.toml; {_RECORDED}"
        )
    if kind == "write":
        return f"refused: {name} is outside of the work directory. Write below the current directory, {_RECORDED}"
    path = PurePosixPath(name)
    folder = path.parent if path.suffix else path
    link = folder.name or "data"
    return (
        f"refused: {name} is not pinned. Make a link in the workspace, `ln -s {folder} {link}`, add {link} to "
        f"[tokenizer] path or [data] paths in m5ws.toml, and read {link} in the script; {_RECORDED}"
    )

"""The file that a script did not find, by the `filename` of its error.

The author's checkout may have the file, because git ignores it, so that no snapshot contains it. The script may want to
write into a folder that neither the checkout nor the snapshot has.
"""

import os
from pathlib import Path

from m5ws.records.launch import Context


def advice(error: BaseException, context: Context) -> str | None:
    """Return the file or folder that was not found, with the line for m5ws.toml; None if there is none."""
    if not isinstance(error, FileNotFoundError) or not isinstance(error.filename, str):
        return None
    author, work = Path(context.author_dir), Path(os.path.realpath(context.work_dir))
    path = Path(os.path.relpath(error.filename, work))
    if path.parts[:1] in ((), ("..",), (".m5ws",), (".git",)):
        return None
    absent = next((part for part in (*reversed(path.parents), path) if not os.path.exists(work / part)), None)
    if absent is None:
        return None
    if os.path.exists(author / path):
        return (
            f"{path} is in the workspace, and the snapshot does not contain it, because git or [code] exclude ignores "
            f'it. Add `paths = ["{absent}"]` to [data] in m5ws.toml'
        )
    if absent == path or os.path.exists(author / absent):
        return None
    return (
        f"there is no folder {path.parent}. If the script writes into it, let it create the folder "
        f'(`os.makedirs(…, exist_ok=True)`), and add `outputs = ["{path.parts[0]}"]` to [run] in m5ws.toml'
    )

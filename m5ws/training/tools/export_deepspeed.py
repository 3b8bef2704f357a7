"""A DeepSpeed checkpoint as the files that DeepSpeed itself writes, for `engine.load_checkpoint` and its own tools.

One file is in memory at a time. https://deepspeed.readthedocs.io/en/latest/model-checkpointing.html
"""

import os
import shutil
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from deepspeed.utils import zero_to_fp32

from m5ws.errors import CorruptObject
from m5ws.progress import Progress
from m5ws.records.checkpoint import Content
from m5ws.repository.objects import Objects
from m5ws.training.backends.deepspeed import state as deepspeed_state


def write(objects: Objects, content: Content, directory: Path, tag: str, progress: Progress | None) -> None:
    """Write each file of `content` into `directory/tag`, and the file `latest`, which names `tag`.

    Raises NotFound, CorruptObject, RestoreError.
    """
    names = files(content)
    folder = directory / tag
    folder.mkdir()
    tensors = {tensor.name: tensor for tensor in content.tensors}
    for number, name in enumerate(names):
        state = deepspeed_state.read(objects, content.blobs[name], tensors)
        torch.save(with_shapes(state), folder / name)
        if progress:
            progress("writing files", number + 1, len(names))
    (directory / "latest").write_text(tag)
    # DeepSpeed puts its script beside each checkpoint, and users expect it there.
    shutil.copyfile(zero_to_fp32.__file__, directory / "zero_to_fp32.py")


def with_shapes(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state with torch's shape type: shapes are stored as tuples, and DeepSpeed's tools call `numel`."""
    groups = state.get("param_shapes")
    frozen = state.get("frozen_param_shapes")
    shapes = {
        "param_shapes": [_sizes(group) for group in groups] if groups else groups,
        "frozen_param_shapes": _sizes(frozen) if frozen else frozen,
    }
    return {**state, **{name: value for name, value in shapes.items() if name in state}}


def _sizes(shapes: Mapping[str, Any]) -> OrderedDict[str, torch.Size]:
    return OrderedDict((name, torch.Size(shape)) for name, shape in shapes.items())


def files(content: Content) -> list[str]:
    """Return the names of DeepSpeed's own files; the buffers of single ranks are m5ws's. Raises CorruptObject."""
    names = [name for name in content.blobs if name.endswith(".pt")]
    # They become paths, and the store may be damaged or forged.
    if invalid := [name for name in names if os.path.basename(name) != name]:
        raise CorruptObject(f"the checkpoint has invalid file names: {', '.join(map(repr, invalid))}")
    return names

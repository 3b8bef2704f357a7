"""Files of an attempt outside of its work directory: checkpoint files at the places that its launch names, and all
files beside the work directory (`../results`).

The former are stored nowhere, and a replay would replace them. The latter are the attempt's own.
"""

import itertools
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from m5ws.config.commands import arguments
from m5ws.errors import M5Error, UsageError
from m5ws.records.ledger import Notice
from m5ws.records.run import Run
from m5ws.repository.arguments import load as load_arguments
from m5ws.repository.repository import Repository
from m5ws.runs import parameters, work_directories
from m5ws.runs.outputs import checkpoint_formats, outputs

OUTSIDE = "outputs-outside"
"""Kind of notice: one such place, which is the end of the message, with the name of a file there."""
_BEGIN = "outside of the work directory, the script changed checkpoint files in "
_MOST = 20_000
"""Number of files that are looked at in one place."""
_SHORT_OPTION = re.compile(r"-[A-Za-z]([/~].*)", re.DOTALL)
_PLACEHOLDER = re.compile(r"[{%$*<]")
"""Begin of a part of a path that a script fills in, such as `model-{step}.pt`."""
_NOT_RESULTS = re.compile(r"m5ws-[0-9a-f]{16}|\.m5ws|(models|datasets|spaces)--.*")
"""Names of folders without results: work directories, stores, and downloads from a hub in its cache."""
_CACHES = frozenset(
    (
        *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_ASSETS_CACHE", "HUGGINGFACE_HUB_CACHE"),
        *("TRANSFORMERS_CACHE", "TORCH_HOME", "KERAS_HOME", "XDG_CACHE_HOME", "PIP_CACHE_DIR", "CUDA_CACHE_PATH"),
        *("TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR", "TEMP", "TMP"),
    )
)
"""Variables with folders for downloads, compiled code and temporary files."""
_CACHE_KEYS = frozenset(
    ("cache_dir", "hf_home", "hf_hub_cache", "hf_datasets_cache", "transformers_cache", "torch_home")
)
"""Keys of config files with such folders."""
_OTHER_FORMATS = (".gguf", ".h5", ".joblib", ".keras", ".msgpack", ".onnx", ".pkl", ".tflite")


def notices(repo: Repository, run: Run, work: Path, begun_ns: int) -> list[tuple[str, str]]:
    """Return a notice, by kind, of each place outside `work` with a checkpoint file that changed since the start.

    The places are named by arguments, by files that the command names, by config files and by the run's variables.
    `begun_ns`: nanoseconds since the epoch.
    """
    places = dict(_places(_words(repo, run), work))
    changed = {place: _changed(files, begun_ns) for place, files in places.items()}
    return [(OUTSIDE, f"{_BEGIN}{_shown(place, file)}") for place, file in changed.items() if file is not None]


def beside(attempt: Path) -> list[tuple[str, str]]:
    """Return a notice, by kind, of the files that an attempt has beside its work directory; none without such files.

    `attempt` is the attempt's directory.
    """
    entries = work_directories.beside(attempt)
    if not entries:
        return []
    names = outputs.listed([f"../{outputs.shown(os.fsencode(entry.name))}" for entry in entries])
    message = (
        f"outside of the work directory, the script wrote {names}. This is not stored, and no later attempt gets it. "
        f"It stays on this machine, in {entries[0].parent}. Let the script write below its current directory, to a "
        "folder of [run] outputs"
    )
    return [(outputs.NOT_KEPT, message)]


def refuse_overwriting(run: str, noted: Iterable[Notice]) -> None:
    """Raise UsageError if the notices of a run name such places: a replay would overwrite the run's own results."""
    messages = (notice.message for notice in noted if notice.kind == OUTSIDE)
    places = list(dict.fromkeys(message.removeprefix(_BEGIN) for message in messages))
    if places:
        raise UsageError(
            f"run {run} changed checkpoint files in {outputs.listed(places)}, outside of its work directory: a replay "
            "would overwrite them",
            hint="Let the script write below its current directory, to a folder of [run] outputs. If you have moved "
            "these files away, or only another program changed them, `m5ws reproduce --overwrite` replays this run.",
        )


def _words(repo: Repository, run: Run) -> Iterator[str]:
    """Yield the texts of a launch that may be paths. Those of files are left out if the store cannot be read."""
    command = run.spec.command[1:]
    yield from arguments.values(command)
    yield from (match[1] for match in map(_SHORT_OPTION.fullmatch, command) if match)
    yield from (value for name, value in run.spec.environment.items() if name not in _CACHES)
    with suppress(M5Error):
        of_files = (parameters.config(repo, run.snapshot), load_arguments(repo, run.snapshot, run.spec).parameters())
        for named in of_files:
            yield from (value for name, value in named.items() if name.rpartition(".")[2] not in _CACHE_KEYS)


def _places(words: Iterable[str], work: Path) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield the places outside of a work directory that words name, each with its files.

    A path that does not exist may be the begin of names of files: `/a/model` of `/a/model_step_8.pt`.
    """
    root = os.path.realpath(work)
    parts = (part for word in words for part in dict.fromkeys([word, *word.split(",")]))
    for part in dict.fromkeys(os.path.expandvars(part.removeprefix("file://")) for part in parts):
        word = os.path.expanduser(part)
        if not (os.path.isabs(word) or ".." in Path(word).parts):
            continue
        try:
            if not os.path.exists(os.path.join(root, word)):
                word = _PLACEHOLDER.split(word)[0]
            place = os.path.realpath(os.path.join(root, word))
        except ValueError:
            continue  # It has characters that no path has.
        folder, begin = os.path.split(place)
        if begin and not Path(place).is_relative_to(os.path.dirname(root)):
            if os.path.exists(place):
                yield place, _files(place)
            elif folder != "/" and os.path.isdir(folder):
                yield f"{place}*", _files_from(folder, begin)


def _changed(files: Iterable[str], begun_ns: int) -> str | None:
    """Return the first checkpoint file that was written since a time; None without one that can be read."""
    for path in itertools.islice(files, _MOST):
        with suppress(OSError):
            status = os.stat(path)
            # Reading a pipe or a terminal would wait for ever.
            if stat.S_ISREG(status.st_mode) and status.st_mtime_ns >= begun_ns and _is_checkpoint(path):
                return path
    return None


def _shown(place: str, file: str) -> str:
    name = os.path.relpath(file, place) if file.startswith(f"{place}/") else os.path.basename(file)
    text = place if file == place else f"{place} ({name})"
    return outputs.shown(os.fsencode(text))


def _is_checkpoint(path: str) -> bool:
    return path.lower().endswith(_OTHER_FORMATS) or checkpoint_formats.ending(Path(path)) is not None


def _files(place: str) -> Iterator[str]:
    """Yield a file, or all files in a folder and in the folders behind its links, each folder once."""
    if not os.path.isdir(place):
        yield place
    seen = set[str]()
    for folder, names, files in os.walk(place, followlinks=True):
        real = os.path.realpath(folder)
        is_new = real not in seen
        seen.add(real)
        names[:] = [name for name in names if is_new and not _NOT_RESULTS.fullmatch(name)]
        yield from (os.path.join(folder, name) for name in files if is_new)


def _files_from(folder: str, begin: str) -> Iterator[str]:
    """Yield the files in a folder, and below, of which the first name begins with `begin`."""
    with suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(begin):
                yield from _files(os.path.join(folder, name))

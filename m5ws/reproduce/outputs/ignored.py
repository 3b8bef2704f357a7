"""Rules for output that is not judged: logs, and values whose names stand for times, speeds or places.

A rule is a glob of a file's path, or `glob:key` for values in files that are compared by keys. `*` matches slashes too.
A key matches by its last name, or by all of its names joined by dots. Files of weights are left out by the user's rules
alone.
"""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from m5ws.reproduce.outputs import archives, tensor_files

DEFAULTS = (
    "**/events.out.tfevents.*",
    "**/wandb/**",
    "**/mlruns/**",
    "**/structured_logs/**",  # torchtitan: times of the parts of a step
    "**/*.log",
    "**/.metadata:save_id",  # drawn at random by torch.distributed.checkpoint
    *(
        f"*:{key}"
        for key in (
            "runtime",
            "*_runtime",
            "*per_second",
            "*_per_second_*",
            "*_per_sec",
            "*/sec",
            "*_per_s",
            "seconds",
            "*_seconds",
            "*_secs",
            "duration",
            "duration_ms",
            "*_duration",
            "time",
            "*_time",
            "time_*_s",
            "timestamp",
            "*_timestamp",
            "elapsed",
            "elapsed_ms",
            "*_elapsed",
            "*time_elapsed*",
            "*walltime",
            "*wall_time",
            "date",
            "datetime",
            "created_at",
            "updated_at",
            "hostname",
            "pid",
        )
    ),
)

_WEIGHTS = (
    *tensor_files.SUFFIXES,
    *(".distcp", ".gguf", ".h5", ".joblib", ".keras", ".msgpack", ".onnx", ".pt2", ".ptl", ".tflite"),
)
"""Ends of the names of files of weights, in the folders of loggers too (`mlflow.pytorch.log_model`)."""

_TRAINER_STATE = "trainer_state.json"
_OF_TRAINER = tuple(
    f"**/{file}:{key}"
    for file in ("all_results.json", "train_results.json", _TRAINER_STATE)
    for key in ("train_loss", "*num_tokens")
)
_OF_LIGHTNING = "**/*.ckpt:loops.*.val_loop.batch_progress.*"
_SERIES = ("over_time", "_by_time", "_at_time", "_vs_time")
"""Ends of the names of results at several times, such as `loss_over_time`. They are no times."""
_MARK = "m5ws-"
"""Prefix of the name of the folder around a work directory (`work_directories`)."""
_NUMBER = re.compile(rf"{_MARK}[0-9a-f]{{16}}")
_NUMBERED = f"{_MARK}{'0' * 16}"
_PLACE = re.compile(rf"(?:/[^\s'\",:;]*?)?{_MARK}[0-9a-f]{{16}}(?:/work\b)?")


def is_file(path: str, rules: Sequence[str]) -> bool:
    """Return True if a file is not judged: by the `rules` of the user, or as a log that cannot hold weights."""
    logs = () if is_weights(path) or path.removesuffix(".gz").endswith(archives.SUFFIXES) else DEFAULTS
    return any(_fits(path, rule) for rule in (*logs, *rules) if ":" not in rule)


def is_weights(path: str) -> bool:
    """Return True if a file has the name of a file of weights. An archive may contain some under any name."""
    return path.removesuffix(".gz").endswith(_WEIGHTS)


def restarted(names: Iterable[str]) -> tuple[str, ...]:
    """Return rules for the output files of a resumed run, for values that begin again with each attempt.

    They are means and counts of Hugging Face's Trainer and of trl, if the Trainer's own file is among the names, and
    Lightning's counts of the batches of validations. A validation that a kill interrupted is counted as done.
    """
    is_trainer = any(name.rpartition("/")[2] == _TRAINER_STATE for name in names)
    return (*(_OF_TRAINER if is_trainer else ()), _OF_LIGHTNING)


def is_key(path: str, key: str, rules: Sequence[str]) -> bool:
    """Return True if a value in a file is not judged."""
    # Arguments and states of objects in pickles have their places in parentheses.
    names = [name for name in key.split(".") if not name.isdigit() and not name.startswith("(")] or [key]
    for rule in rules:
        files, colon, keys = rule.rpartition(":")
        if names[-1].endswith(_SERIES) and rule in DEFAULTS:
            continue
        if colon and _fits(path, files) and (fnmatchcase(names[-1], keys) or fnmatchcase(key, keys)):
            return True
    return False


def without_place(value: str, run: str) -> str:
    """Return a text without the absolute path of the work directory of `run`, and without the run's id."""
    if _MARK in value:
        value = _PLACE.sub("RUN", value)
    return re.sub(rf"(?:/[^\s'\",:;]*?)?{re.escape(run)}(?:/\d{{4}}\b)?(?:/work\b)?", "RUN", value) if run else value


def with_one_number(data: bytes) -> bytes:
    """Return bytes of a file with the numbers of all work directories replaced by one number of equal length."""
    return re.sub(_NUMBER.pattern.encode(), _NUMBERED.encode(), data)


def _fits(path: str, rule: str) -> bool:
    return fnmatchcase(path, rule) or (rule.startswith("**/") and fnmatchcase(path, rule[3:]))

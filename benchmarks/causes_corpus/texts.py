"""Texts of cases: forms with free fields, which a seed fills.

`@{name}` is a field: the same name has the same value everywhere in a case, and `name2` is another value of its kind.
`@{one|another}` is a choice. Fields may stand inside choices.
"""

import random
import re

_FIELD = re.compile(r"@\{([^{}]*)\}")
_USERS = ("alice", "bchen", "mlops", "rkumar", "train", "jdoe", "svc-llm")
_SCRIPTS = ("train.py", "pretrain.py", "finetune.py", "main.py", "run_clm.py", "train_gpt.py", "sft.py")
_FUNCTIONS = ("main", "train", "run", "fit", "training_step", "run_epoch", "step", "_run_batch", "advance", "launch")
_FILES = ("trainer.py", "loop.py", "engine.py", "data/loader.py", "models/gpt.py", "utils/ckpt.py", "train_utils.py")
_CODE = (
    "loss = model(batch)",
    "self.fit_loop.run()",
    "output = self._call_impl(*args, **kwargs)",
    "trainer.fit(model, datamodule)",
    "return fn(*args, **kwargs)",
    "self.step(batch, step)",
    "state = self.load(path)",
    "return self.func(*args)",
    "for batch in loader:",
    "save(state, path)",
)
_LIBRARIES = (
    "torch/nn/modules/module.py",
    "torch/distributed/c10d_logger.py",
    "torch/utils/data/dataloader.py",
    "lightning/pytorch/trainer/trainer.py",
    "transformers/trainer.py",
    "accelerate/accelerator.py",
)
_MODULES = (
    "deepspeed_ops",
    "flash_attn_interface",
    "lightning_lite",
    "mytrainer",
    "wandb_ext",
    "datasets_v3",
    "omgconf",
)


def _hex(rng: random.Random, digits: int) -> str:
    return f"{rng.getrandbits(4 * digits):0{digits}x}"


def traceback(rng: random.Random) -> str:
    """Return the head of a traceback: all lines before the line of the exception."""
    carets = rng.random() < 0.4
    lines = ["Traceback (most recent call last):"]
    root = f"/workspace/{rng.choice(_USERS)}"
    places = [f"{root}/{rng.choice(_SCRIPTS)}"] + [f"{root}/{rng.choice(_FILES)}" for _ in range(rng.randint(0, 3))]
    places += [f"/opt/venv/lib/python3.11/site-packages/{rng.choice(_LIBRARIES)}" for _ in range(rng.randint(0, 2))]
    for depth, path in enumerate(places):
        code = rng.choice(_CODE)
        function = rng.choice(_FUNCTIONS) if depth else "<module>"
        lines += [f'  File "{path}", line {rng.randint(8, 1900)}, in {function}', f"    {code}"]
        if carets:
            lines.append("    " + "^" * len(code))
    return "\n".join(lines) + "\n"


def _pool(kind: str, rng: random.Random) -> str:
    """Return a value of a field. Raises KeyError for an unknown field."""
    number = rng.randint
    minute, second = number(0, 59), number(0, 59)
    drawn = {
        "tb": lambda: traceback(rng),
        "pid": lambda: number(300, 4_000_000),
        "gid": lambda: 1_762_000_000 + number(0, 99_999),
        "port": lambda: number(20_000, 32_000),
        "n": lambda: number(10, 999),
        "local": lambda: number(0, 7),
        "rank": lambda: number(0, 1023),
        "dim": lambda: 2 ** number(6, 13),
        "odd": lambda: rng.choice([77, 99, 333, 770, 1000, 1023, 1025, 3000, 5001]),
        "numel": lambda: number(1, 900_000) * 64,
        "seq": lambda: number(100, 99_999),
        "step": lambda: number(1, 400) * 50,
        "secs": lambda: number(1, 59),
        "bytes": lambda: number(10**6, 10**10),
        "gib": lambda: f"{number(1, 40)}.{number(0, 99):02}",
        "used": lambda: f"{number(60, 78)}.{number(0, 99):02}",
        "mib": lambda: f"{number(2, 900)}.{number(0, 99):02}",
        "hex": lambda: _hex(rng, 8),
        "host": lambda: f"{rng.choice(['node', 'gpu-', 'ip-10-0-3-', 'worker', 'h200-'])}{number(1, 250)}",
        "ip": lambda: f"10.{number(0, 9)}.{number(0, 250)}.{number(2, 250)}",
        "bus": lambda: f"0000:{number(1, 240):02x}:00",
        "uptime": lambda: f"{number(10**4, 10**7)}.{number(0, 999_999):06}",
        "gtime": lambda: f"1103 12:{minute:02}:{second:02}.{number(0, 999_999_999):09}",
        "time": lambda: f"2026-11-03 12:{minute:02}:{second:02}",
        "isotime": lambda: f"2026-11-03T12:{minute:02}:{second:02}",
        "user": lambda: rng.choice(_USERS),
        "script": lambda: rng.choice(_SCRIPTS),
        "ckpt": lambda: f"step_{number(1, 900) * 100}{rng.choice(['.pt', '.ckpt', '/model.bin', ''])}",
        "data": lambda: f"{rng.choice(['shard', 'train', 'part', 'tokens'])}-{number(0, 9999):05}",
        "path": lambda: f"v{number(1, 9)}/{rng.choice(['models', 'files', 'runs'])}",
        "webhost": lambda: f"{rng.choice(['hub', 'git', 'data', 'api'])}.{rng.choice(['example', 'corp', 'lab'])}.com",
        "bucket": lambda: f"{rng.choice(_USERS)}-{rng.choice(['ckpt', 'corpus', 'runs'])}",
        "key": lambda: f"{rng.choice(['run', 'ckpt', 'data'])}{number(1, 99)}/{rng.choice(['model.bin', 'shard.tar'])}",
        "jobid": lambda: number(10_000, 9_999_999),
        "nnodes": lambda: rng.choice([2, 16, 128]),
        "module": lambda: rng.choice(_MODULES),
    }
    return str(drawn[kind]())


class Fields:
    """The values of the fields of a case. Values that the case fixes, as the rank, are given by name."""

    def __init__(self, rng: random.Random, fixed: dict[str, str]) -> None:
        self._rng = rng
        self._values = dict(fixed)

    def fill(self, text: str) -> str:
        """Return a text with the values of its fields. Raises KeyError for an unknown field."""
        while (filled := _FIELD.sub(self._value, text)) != text:
            text = filled
        return text

    def _value(self, match: re.Match[str]) -> str:
        name = match[1]
        if name not in self._values:
            is_choice = "|" in name
            self._values[name] = (
                self._rng.choice(name.split("|")) if is_choice else _pool(name.rstrip("0123456789"), self._rng)
            )
        return self._values[name]

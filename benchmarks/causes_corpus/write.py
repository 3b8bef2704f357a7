"""Writes the corpus of causes: cases.jsonl.xz, healthy.jsonl.xz and healthy-steady.jsonl.xz, beside this file.

Run `python benchmarks/causes_corpus/write.py` as root of a Linux machine, where real scripts get full disks and little
memory. The composed cases of a seed are equal everywhere; real cases depend on the versions of Python and torch.
"""

import argparse
import importlib
import json
import lzma
import os
import random
import shutil
import subprocess
import sys
import textwrap
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import real
import surroundings
from texts import Fields

HERE = Path(__file__).parent
CASES_A_CLASS = 26
HEALTHY = 2_000
_RANKS, _RANKS_PER_NODE = 1024, 8
_DISTRIBUTED = """\
import datetime
import os

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
"""
_IMPORTED_ONCE = (
    "torch._dynamo",
    "torch.distributed",
    "torch.optim",
    "pandas",
    "boto3",
    "requests",
    "safetensors.torch",
)
_HEADERS = {
    "s3": """\
import os

import boto3
from botocore.config import Config

s3 = boto3.client(
    "s3",
    endpoint_url=os.environ["STUB"],
    region_name="us-east-1",
    aws_access_key_id="AKIDEXAMPLE",
    aws_secret_access_key="example",
    config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}),
)
""",
    "hub": "import huggingface_hub\n",
    "tls": 'import os\n\nTLS, PORT, STUB_PORT = os.environ["TLS"], os.environ["TLS_PORT"], os.environ["STUB_PORT"]\n',
}


class Form(NamedTuple):
    """A form of a failure, from which a seed makes cases. Forms of odd numbers are the development half."""

    cause: str
    number: int
    is_real: bool
    entry: dict[str, Any]

    @property
    def split(self) -> str:
        """The half of the corpus in which all cases of this form lie."""
        return "development" if self.number % 2 else "held-out"


def forms() -> dict[str, list[Form]]:
    """Return all forms by class. Real and composed forms take turns in the numbering."""
    entries: dict[str, list[tuple[bool, dict[str, Any]]]] = {}
    for path in [HERE / "scripts.toml", *sorted((HERE / "composed").glob("*.toml"))]:
        for cause, tables in tomllib.loads(path.read_text()).items():
            entries.setdefault(cause, []).extend((path.name == "scripts.toml", table) for table in tables)
    return {
        cause: [Form(cause, number, is_real, entry) for number, (is_real, entry) in enumerate(entries[cause])]
        for cause in sorted(entries)
    }


def _log(rank: int | None, text: str, status: int, node: int, ended_s: float) -> dict[str, Any]:
    return {"node": node, "rank": rank, "text": text, "status": status, "ended_s": round(ended_s, 2)}


def _other_ranks(rng: random.Random, rank: int) -> list[int]:
    """Return some other ranks: the first of the same node, the next of other nodes."""
    near = rank - rank % _RANKS_PER_NODE + (rank + 1) % _RANKS_PER_NODE
    return [
        near,
        *(each for each in rng.sample(range(_RANKS), 5) if each // _RANKS_PER_NODE != rank // _RANKS_PER_NODE),
    ]


def composed(form: Form, rng: random.Random) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return the logs of a composed case, and its root. Without a root, all ranks have the same error."""
    rank, status = rng.randrange(_RANKS), form.entry.get("status", 1)
    others = _other_ranks(rng, rank)
    fixed = {"rank": str(rank), "rank2": str(others[1]), "local": str(rank % _RANKS_PER_NODE)}
    fields = Fields(rng, fixed)
    start = surroundings.prefix(rng, fields)
    lines = "\n".join([*surroundings.before(rng, fields), fields.fill(form.entry["text"].strip("\n"))])
    is_launcher = form.entry.get("launcher", False)
    node = rank // _RANKS_PER_NODE
    logs = [_log(None if is_launcher else rank, start(lines), status, node, 0)]
    kind = form.entry.get("follow") or rng.choice(surroundings.kinds())
    for other in others[: rng.randint(1, 2)]:
        own = Fields(rng, {"rank": str(other), "local": str(other % _RANKS_PER_NODE)})
        is_same = kind == "same"
        text = own.fill(form.entry["text"].strip("\n")) if is_same else surroundings.follower(kind, rng, own)
        text = "\n".join(filter(None, ["\n".join(surroundings.progress(rng, rng.randint(1, 3))), text]))
        ended = status if is_same else -15 if kind in {"term", "silent"} else 1
        logs.append(_log(other, start(text), ended, other // _RANKS_PER_NODE, rng.uniform(0.2, 30)))
    if not is_launcher and rng.random() < 0.25:
        logs.append(_log(None, surroundings.launcher(status, rank, rng), 1, node, 31))
    root = None if kind == "same" else {"node": node, "rank": None if is_launcher else rank}
    return logs, root


def _source(form: Form, fields: Fields, rng: random.Random, way: str) -> str:
    """Return the script of a case. Of distributed ranks the last fails, or all fail."""
    body = fields.fill(form.entry["text"].strip("\n"))
    is_all = form.entry.get("ranks") in {"all", "ddp"}
    names = rng.sample(["train_step", "run_epoch", "fit", "advance", "_run", "launch", "load_state", "prepare"], 3)
    printed = "\n".join(f"print({line!r}, flush=True)" for line in surroundings.before(rng, fields))
    lines = [_HEADERS.get(form.entry.get("need", ""), "")]
    if way != "alone":
        lines.append(_DISTRIBUTED)
        loop = "for _ in range(3):\n    dist.all_reduce(torch.ones(2))\n"
        loop += (
            f"{names[0]}()"
            if is_all
            else f"if RANK == 1:\n    {names[0]}()\nfor _ in range(9):\n    dist.all_reduce(torch.ones(2))"
        )
        printed += '\ndist.init_process_group("gloo", timeout=datetime.timedelta(seconds=6))\n' + loop
    else:
        printed += f"\n{names[0]}()"
    lines.append(f"def {names[2]}():\n{textwrap.indent(body, '    ')}\n\n")
    ran = "    open(os.path.join(os.path.dirname(__file__), 'ran'), 'w').close()\n"
    lines.append(
        f"import os\n\ndef {names[1]}(depth=0):\n{ran}    return {names[2]}() if depth else {names[1]}(depth + 1)\n\n"
    )
    lines.append(f"def {names[0]}():\n    {names[1]}()\n\n")
    lines.append(f"def main():\n{textwrap.indent(printed, '    ')}\n\n")
    return "\n".join(lines) + 'if __name__ == "__main__":\n    main()\n'


def _way(form: Form, rng: random.Random) -> str:
    wanted = form.entry.get("ranks")
    if wanted in {"all", "ddp"}:
        return "ranks"
    drawn = rng.random()
    return (
        "alone"
        if wanted != "any" or drawn < 0.55
        else "ranks"
        if drawn < 0.92 or form.entry.get("need")
        else "torchrun"
    )


def real_case(
    form: Form, rng: random.Random, environment: dict[str, str]
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Run the script of a case, and return the logs and the root. Without a root, all ranks failed."""
    folder = real.WORK / "case"
    for old in folder, real.WORK / "dcp":
        shutil.rmtree(old, ignore_errors=True)
    (folder / "work").mkdir(parents=True)
    (real.WORK / "small").mkdir(exist_ok=True)
    rank = rng.randrange(_RANKS)
    others = _other_ranks(rng, rank)
    fixed = {
        "scratch": str(real.WORK),
        "work": str(folder / "work"),
        "small": str(real.WORK / "small"),
        "port": str(real.free_port()),
    }
    fields = Fields(rng, fixed | {"rank": str(rank), "rank2": str(others[1]), "local": str(rank % _RANKS_PER_NODE)})
    way, script = _way(form, rng), folder / fields.fill("@{script}")
    script.write_text(_source(form, fields, rng, way))
    home, need, start = fields.fill("/workspace/@{user}"), form.entry.get("need", ""), surroundings.prefix(rng, fields)
    if way == "torchrun":
        ended = real.run_torchrun(script, 2, environment, home)
    else:
        ended = real.run(script, 1 if way == "alone" else rng.choice([2, 2, 3]), need, environment, home)
    names = {1: rank, 0: others[0], 2: others[1]} if way != "alone" else {0: rank}
    logs = []
    for each in ended:
        name = None if each.rank is None else names[each.rank]
        node = (rank if name is None else name) // _RANKS_PER_NODE
        text = each.text
        for local in (0, 1, 2) if way != "alone" else ():
            text = text.replace(f"[rank{local}]:", f"[Rank{local}]:")
        for local, real_rank in names.items():
            text = text.replace(f"[Rank{local}]:", f"[rank{real_rank}]:")
        logs.append(_log(name, start(text), each.status, node, 0 if name == rank else rng.uniform(0.05, 3)))
    logs.sort(key=lambda log: log["rank"] != rank)
    if way == "alone" and rng.random() < 0.8:
        kind = rng.choice(surroundings.kinds())
        for other in others[: rng.randint(1, 2)]:
            own = Fields(rng, {"rank": str(other), "local": str(other % _RANKS_PER_NODE)})
            text = "\n".join([*surroundings.progress(rng, 2), surroundings.follower(kind, rng, own)]).rstrip("\n")
            status = -15 if kind in {"term", "silent"} else 1
            logs.append(_log(other, start(text), status, other // _RANKS_PER_NODE, rng.uniform(0.2, 30)))
    is_all = form.entry.get("ranks") in {"all", "ddp"}
    return logs, None if is_all else {"node": rank // _RANKS_PER_NODE, "rank": rank}


def _is_valid(logs: list[dict[str, Any]]) -> bool:
    """Return True if the body of a script ran, and failed before the limit of time."""
    killed = any(log["status"] == -9 for log in logs)
    return (real.WORK / "case" / "ran").exists() and any(log["status"] for log in logs) and not killed


def cases(seed: int, wanted: set[str], environment: dict[str, str], only_composed: bool) -> Iterator[dict[str, Any]]:
    """Yield all cases: for each class, its forms in turn."""
    for cause, of_class in forms().items():
        for number in range(CASES_A_CLASS) if not wanted or cause in wanted else ():
            form = of_class[number % len(of_class)]
            if only_composed and form.is_real:
                continue
            name = f"{cause}-{form.number}-{number // len(of_class)}"
            rng = random.Random(f"{seed}/{name}")
            began_s = time.monotonic()
            logs, root = real_case(form, rng, environment) if form.is_real else composed(form, rng)
            if time.monotonic() - began_s > 6:
                print(f"{name}: {time.monotonic() - began_s:.0f} s", file=sys.stderr)
            if form.is_real and not _is_valid(logs):
                print(f"{name}: the script did not fail as it should", file=sys.stderr)
                continue
            yield {
                "id": name,
                "class": cause,
                "source": form.entry.get("source", "a script that failed; Python 3.11, torch 2.13"),
                "kind": "real" if form.is_real else "composed",
                "split": form.split,
                "seed": seed,
                "logs": logs,
                "root": root,
            }


def healthy(seed: int, *, is_steady: bool) -> Iterator[dict[str, Any]]:
    """Yield ends of healthy logs with frightening lines, which are followed by progress or by the end of the run.

    If a log is steady, its first two steps have the form of its later steps. Otherwise the forms are drawn apart.
    """
    table = tomllib.loads((HERE / "healthy.toml").read_text())
    for number in range(HEALTHY):
        rng = random.Random(f"{seed}/healthy-{number}")
        fields = Fields(rng, {})
        start = surroundings.prefix(rng, fields)
        lines, steps = surroundings.progress(rng, 2), iter(surroundings.progress(rng, 14))
        if is_steady:
            lines = [next(steps), next(steps)]
        for text in rng.sample(table["texts"][number % 2 :: 2], rng.randint(1, 3)):
            lines += [fields.fill(text), next(steps)]
        lines += [next(steps)] if rng.random() < 0.6 else [fields.fill(rng.choice(table["ends"]))]
        split = "development" if number % 2 else "held-out"
        yield {"id": f"healthy-{number}", "split": split, "text": start("\n".join(lines))}


def _write(name: str, records: Iterator[dict[str, Any]]) -> None:
    path, count = HERE / name, 0
    options = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 64 << 20, "lc": 4, "lp": 0}]
    with lzma.open(path, "wt", encoding="utf-8", filters=options) as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
            count += 1
    print(f"{name}: {count} records, {path.stat().st_size:,} bytes")


def _by_jobs(seed: int, jobs: int) -> Iterator[dict[str, Any]]:
    """Yield all cases in the order of classes, from processes that each write some classes."""
    names, parts = list(forms()), [HERE / f"part-{job}.jsonl.xz" for job in range(jobs)]
    commands = [
        [sys.executable, __file__, "--seed", str(seed), "--name", part.name, "--classes", *names[job::jobs]]
        for job, part in enumerate(parts)
    ]
    for process in [subprocess.Popen(command) for command in commands]:
        if process.wait() != 0:
            raise SystemExit("a job failed")
    records: list[dict[str, Any]] = []
    for part in parts:
        with lzma.open(part, "rt", encoding="utf-8") as file:
            records += map(json.loads, file)
        part.unlink()
    yield from sorted(records, key=lambda record: names.index(record["class"]))


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=46)
    parser.add_argument("--classes", nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--only-composed", action="store_true")
    parser.add_argument("--name", default="cases.jsonl.xz")
    arguments = parser.parse_args()
    if not arguments.classes:
        _write("cases.jsonl.xz", _by_jobs(arguments.seed, arguments.jobs))
        _write("healthy.jsonl.xz", healthy(arguments.seed, is_steady=False))
        _write("healthy-steady.jsonl.xz", healthy(arguments.seed, is_steady=True))
        return
    real.WORK.mkdir(exist_ok=True)
    command = [sys.executable, str(HERE / "stubs.py"), str(real.WORK)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stubs:
        assert stubs.stdout is not None
        stub, tls = stubs.stdout.readline().split()
        environment = {"STUB": f"http://127.0.0.1:{stub}", "STUB_PORT": stub, "TLS": f"https://127.0.0.1:{tls}/"}
        environment |= {"TLS_PORT": tls, "HF_ENDPOINT": f"http://127.0.0.1:{stub}", "HF_HOME": str(real.WORK / "hf")}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        if not arguments.only_composed:
            os.environ["OMP_NUM_THREADS"] = "1"
            for module in _IMPORTED_ONCE:
                importlib.import_module(module)
        _write(arguments.name, cases(arguments.seed, set(arguments.classes), environment, arguments.only_composed))
        assert stubs.stdin is not None
        stubs.stdin.close()
    shutil.rmtree(real.WORK)


if __name__ == "__main__":
    main()

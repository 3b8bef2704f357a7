"""The answers of `m5ws cause` and of its peers to a corpus of failures, each by its own code, in one run.

Run `python benchmarks/causes_peers.py [--peers PYTHON] [--determined const.go] [--classes]`. The corpus is described in
`causes_corpus/README.md`. PYTHON is an interpreter with the peers. The default patterns of Determined are in its
`master/pkg/schemas/expconf/const.go`. A peer that is absent is a row that says so.
"""

import argparse
import json
import lzma
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from causes_verdicts import judge_class, judge_node, judge_restart, share

from m5ws.supervision import causes
from m5ws.version import __version__

Case = dict[str, Any]
Answer = dict[str, Any]
_CORPUS = Path(__file__).with_name("causes_corpus")
_ANSWERS = Path(__file__).with_name("scripts") / "peer_answers.py"
_ABSENT = 3
_HEALTHY = "healthy"
_COLUMNS = (
    "tool", "version", "class right", "exception only", "class wrong", "no class", "node right", "node wrong",
    "no node", "restart right", "in vain", "refused", "no decision", "healthy named", "ms",
)  # fmt: skip
_PEERS = {"nvrx": "NVIDIA resiliency extension", "dlrover": "DLRover", "fkat": "fkat"}


def _read(path: Path) -> Iterator[Any]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def load(folder: Path, split: str | None) -> list[Case]:
    """Return the failures of a corpus, and its healthy logs as cases of one rank.

    After the lines of a rank that was killed by a signal comes a line with the signal, as torchrun writes it.
    """
    cases = [case for case in _read(folder / "cases.jsonl.xz") if split in {None, case["split"]}]
    for log in (log for case in cases for log in case["logs"] if log["status"] < 0):
        log["text"] += f"\nSignal {-log['status']} ({signal.Signals(-log['status']).name})"
    for record in _read(folder / "healthy.jsonl.xz"):
        log = {"node": 0, "rank": 0, "text": record["text"], "status": 0, "ended_s": 0.0}
        cases.append({"id": record["id"], "class": _HEALTHY, "logs": [log], "root": None})
    return cases


def m5ws(*, times: bool) -> Callable[[Case], Answer]:
    """Return the function of `m5ws cause` with the rules of m5ws. `times`: ranks recorded when they failed."""
    classifier = causes.Classifier(causes.builtin())

    def answer(case: Case) -> Answer:
        logs, nodes, ended_s = dict[str, list[str]](), dict[str, int](), dict[str, float]()
        for log in case["logs"]:
            name = f"launcher-{log['node']}" if log["rank"] is None else str(log["rank"])
            logs.setdefault(name, []).extend(log["text"].splitlines())
            nodes[name] = log["node"]
            if times and log["status"] and log["rank"] is not None:
                ended_s[name] = log["ended_s"]
        cause = classifier.find(logs, ended_s)
        if cause is None:
            # A failure of unknown cause is restarted within the limits of the run.
            return {"labels": [], "rank": None, "node": None, "retry": True}
        return {"labels": [cause.kind], "rank": cause.rank, "node": nodes[cause.rank], "retry": cause.retry}

    return answer


def determined(source: Path) -> Callable[[Case], Answer]:
    """Return the search for Determined's default patterns, by Python: its master is written in Go.

    The default action of a match is a label. A trial is restarted after each failure, `max_restarts` times.
    """
    constants = dict(re.findall(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"', source.read_text()))
    names = [name.removesuffix("Pattern") for name in constants if name.endswith("Pattern")]
    labels = {name: constants.get(f"{name}Signal") or constants[name] for name in names}
    patterns = {labels[name]: re.compile(constants[f"{name}Pattern"]) for name in names}

    def answer(case: Case) -> Answer:
        found = [
            (label, log["node"])
            for log in case["logs"]
            for line in log["text"].splitlines()
            for label, pattern in patterns.items()
            if pattern.search(line)
        ]
        label, node = found[0] if found else (None, None)
        return {"labels": [label] if label else [], "rank": None, "node": node, "retry": True}

    return answer


def ask(cases: Iterable[Case], find: Callable[[Case], Answer], version: str) -> tuple[str, dict[str, Answer]]:
    """Return a version, and by case the answers of a function of this process with their seconds."""
    answers = {}
    for case in cases:
        began_s = time.perf_counter()
        answers[case["id"]] = {**find(case), "s": time.perf_counter() - began_s}
    return version, answers


def ask_peer(name: str, python: str, corpus: Path) -> tuple[str, dict[str, Answer]] | None:
    """Return the version and the answers of a peer; None if it is not installed. Raises RuntimeError if it fails."""
    out = corpus.with_name(f"{name}.jsonl")
    command = [python, str(_ANSWERS), name, str(corpus), str(out)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == _ABSENT:
        print(f"{name}: {done.stderr.strip()}", file=sys.stderr)
        return None
    if done.returncode:
        raise RuntimeError(done.stderr)
    first, *rest = map(json.loads, out.read_text().splitlines())
    return first["version"], {answer["id"]: answer for answer in rest}


def row(tool: str, version: str, cases: list[Case], answers: dict[str, Answer]) -> str:
    """Return the row of a tool."""
    failures = [(case, answers[case["id"]]) for case in cases if case["class"] != _HEALTHY]
    healthy = [answers[case["id"]] for case in cases if case["class"] == _HEALTHY]
    kinds = [judge_class(*pair) for pair in failures]
    nodes = [judge_node(*pair) for pair in failures]
    restarts = [judge_restart(*pair) for pair in failures]
    cells = [
        *(share(kinds, verdict) for verdict in ("right", "unspecific", "wrong", "none")),
        *(share(nodes, verdict) for verdict in ("right", "wrong", "none")),
        *(share(restarts, verdict) for verdict in ("right", "vain", "refused", "none")),
        share(["named" if answer["labels"] else "none" for answer in healthy], "named"),
        f"{1000 * statistics.median(answer['s'] for _, answer in failures):.1f}",
    ]
    return f"| {tool} | {version} | {' | '.join(cells)} |"


def show_classes(cases: list[Case], answers: dict[str, dict[str, Answer]]) -> None:
    """Print the percentage of right classes of each tool by class."""
    print(f"\n| class | cases | {' | '.join(answers)} |\n|---|---:|{'---:|' * len(answers)}")
    for kind in sorted({case["class"] for case in cases} - {_HEALTHY}):
        some = [case for case in cases if case["class"] == kind]
        rights = [share([judge_class(case, each[case["id"]]) for case in some], "right") for each in answers.values()]
        print(f"| {kind} | {len(some)} | {' | '.join(rights)} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--corpus", type=Path, default=_CORPUS)
    parser.add_argument("--split", choices=("development", "held-out"))
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--determined", type=Path)
    parser.add_argument("--classes", action="store_true", help="print the percentages of each class too")
    options = parser.parse_args()
    if not options.corpus.exists():
        print(f"no corpus: {options.corpus}", file=sys.stderr)
        return
    cases = load(options.corpus, options.split)
    found: dict[str, tuple[str, dict[str, Answer]] | None] = {
        "m5ws": ask(cases, m5ws(times=True), __version__),
        "m5ws, without times": ask(cases, m5ws(times=False), __version__),
    }
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "corpus.jsonl")
        corpus.write_text("".join(json.dumps(case) + "\n" for case in cases))
        found |= {title: ask_peer(name, options.peers, corpus) for name, title in _PEERS.items()}
    source = options.determined
    found["Determined's patterns"] = ask(cases, determined(source), "–") if source else None
    failures = sum(case["class"] != _HEALTHY for case in cases)
    print(f"{failures:,} failures, {len(cases) - failures:,} healthy logs\n")
    print(f"| {' | '.join(_COLUMNS)} |\n|---|---|{'---:|' * (len(_COLUMNS) - 2)}")
    for tool, answers in found.items():
        absent = f"| {tool} | not installed |{' – |' * (len(_COLUMNS) - 2)}"
        print(row(tool, answers[0], cases, answers[1]) if answers else absent)
    if options.classes:
        show_classes(cases, {tool: answers[1] for tool, answers in found.items() if answers})


if __name__ == "__main__":
    main()

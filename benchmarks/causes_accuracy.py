"""The accuracy of `m5ws cause` on a corpus of failures of 128 nodes × 8 ranks, and its false alarms on healthy logs.

Run `python benchmarks/causes_accuracy.py [--seed 46] [--misses]`. The corpus is described in `causes_corpus/README.md`.
`--misses` prints the cases of the development half with a wrong answer. Of the held-out half it prints no text.
"""

import argparse
import json
import lzma
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from m5ws.logs.reading import LogEnd
from m5ws.records.cause import Cause
from m5ws.records.failure import Failure
from m5ws.records.ledger import RankEnded
from m5ws.supervision import causes, clocks
from m5ws.supervision.diagnosis import Evidence, Recorded

CORPUS = Path(__file__).parent / "causes_corpus"
_NODES, _RANKS_PER_NODE = 128, 8
_RANKS = _NODES * _RANKS_PER_NODE
_SKEW_S = 5.0
_MISSING = 0.2
_STEPS = 5

Case = dict[str, Any]


class Answer(NamedTuple):
    """The answer to a case: classes in their order, and the node of the first. `cause` is None if it is unknown."""

    case: Case
    cause: Cause | None
    kinds: tuple[str, ...]
    node: int | None

    @property
    def is_first(self) -> bool:
        """True if the first class is the right class."""
        return self.kinds[:1] == (self.case["class"],)

    @property
    def is_among_five(self) -> bool:
        """True if one of the first five classes is the right class."""
        return self.case["class"] in self.kinds[:5]

    @property
    def is_right_node(self) -> bool:
        """True if the node of the failure is named."""
        return self.case["root"] is not None and self.node == self.case["root"]["node"]


class Once(causes.Classifier):
    """A classifier that searches equal logs once: a thousand ranks have few different logs."""

    def __init__(self, rules: Mapping[str, causes.Rule]) -> None:
        super().__init__(rules)
        self._matches: dict[tuple[str, ...], causes.Match | None] = {}

    def match(self, lines: Sequence[str], *, is_shared: bool = False) -> causes.Match | None:
        key = (str(is_shared), *lines)
        if key not in self._matches:
            self._matches[key] = super().match(lines, is_shared=is_shared)
        return self._matches[key]


def load(name: str) -> list[Case]:
    """Return the records of a file of the corpus."""
    with lzma.open(CORPUS / name, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def name_log(log: Case) -> str:
    """Return the name that a log has in m5ws."""
    if log["rank"] is not None:
        return str(log["rank"])
    return f"launcher-{log['node']}" if log["node"] else "launcher"


def _missing(case: Case, rng: random.Random) -> set[int]:
    """Return the ranks without a log: up to a fifth of all ranks. The log of the failure is there."""
    root = None if case["root"] is None else case["root"]["rank"]
    return set(rng.sample(range(_RANKS), int(_RANKS * rng.uniform(0, _MISSING)))) - {root}


def simulate(case: Case, seed: int) -> tuple[dict[str, list[str]], Recorded]:
    """Return the logs of all ranks of a case, and the records of its end, by clocks that differ by up to 5 s.

    Ranks that the case does not list end as its ranks after the first do. In half of the cases the ranks recorded
    their steps and failures, as ranks with a session do.
    """
    rng = random.Random(f"{seed}/{case['id']}")
    missing, skews_s = _missing(case, rng), [rng.uniform(-_SKEW_S / 2, _SKEW_S / 2) for _ in range(_NODES)]
    listed = {name_log(log): (log, log["text"].split("\n")) for log in case["logs"]}
    followers = [pair for name, pair in listed.items() if pair[0] is not case["logs"][0] and name.isdigit()]
    quiet = ({"status": -15, "ended_s": 3.0}, [""])
    ends, failures, dead, ended_s, steps = {}, dict[int, RankEnded](), dict[str, int](), dict[int, float](), {}
    has_session = rng.random() < 0.5
    for rank in range(_RANKS):
        log, lines = listed.get(str(rank)) or (rng.choice(followers) if followers else quiet)
        if rank not in missing:
            ends[str(rank)] = lines
        time_s = (
            100 + skews_s[rank // _RANKS_PER_NODE] + log["ended_s"] + (0 if str(rank) in listed else rng.uniform(0, 9))
        )
        if log["status"] < 0:
            dead[str(rank)] = log["status"]
        elif has_session and log["status"]:
            failures[rank] = RankEnded(rank=rank, time_s=time_s, failure=Failure(status=log["status"]))
            ended_s[rank] = time_s
        if has_session:
            shared = {step: 10.0 * step + skews_s[rank // _RANKS_PER_NODE] for step in range(_STEPS)}
            steps[rank] = {step: time_s + rng.uniform(0, 0.01) for step, time_s in shared.items()}
    for name, (_, lines) in listed.items():
        if not name.isdigit():
            ends[name] = lines
    nodes = {rank: rank // _RANKS_PER_NODE for rank in range(_RANKS)}
    ahead_s = clocks.offsets_s(steps, nodes)
    corrected_s = {str(rank): time_s - ahead_s.get(nodes[rank], 0.0) for rank, time_s in ended_s.items()}
    return ends, Recorded(
        failures=failures, dead=dead, ended_s=corrected_s, nodes=nodes, hosts={n: str(n) for n in range(_NODES)}
    )


def answer(case: Case, classifier: causes.Classifier, seed: int) -> Answer:
    """Return the answer of the rules of m5ws to a case, as `m5ws cause` finds it."""
    logs, recorded = simulate(case, seed)
    ends = {name: LogEnd(lines=lines, place=0) for name, lines in logs.items()}
    evidence = Evidence(ends=ends, recorded=recorded)
    cause = classifier.find(evidence.lines, evidence.recorded.ended_s)
    if cause is None:
        return Answer(case, None, (), None)
    others = [kind for kind, _ in Counter(cause.others.values()).most_common() if kind != cause.kind]
    host = recorded.host_of(cause.rank)
    return Answer(case, cause, (cause.kind, *others), None if host is None else int(host))


def interval(right: int, forms: int, cases: int) -> tuple[float, float]:
    """Return Wilson's interval of 95 % for a rate, of as many draws as there are forms: cases of a form are alike."""
    rate, z = right / cases, 1.96
    centre, spread = rate + z * z / (2 * forms), z * math.sqrt(rate * (1 - rate) / forms + z * z / (4 * forms**2))
    return max(0.0, (centre - spread) / (1 + z * z / forms)), min(1.0, (centre + spread) / (1 + z * z / forms))


def _rate(rights: Sequence[bool], forms: int) -> str:
    if not rights:
        return "–"
    low, high = interval(sum(rights), forms, len(rights))
    return f"{sum(rights) / len(rights):.1%} ({low:.1%} – {high:.1%})"


def _row(name: str, answers: Sequence[Answer]) -> str:
    forms = len({each.case["id"].rpartition("-")[0] for each in answers})
    placed = [each for each in answers if each.case["root"] is not None]
    placed_forms = len({each.case["id"].rpartition("-")[0] for each in placed})
    rates = (
        _rate([each.is_first for each in answers], forms),
        _rate([each.is_among_five for each in answers], forms),
        _rate([each.is_right_node for each in placed], placed_forms),
    )
    return f"| {name} | {forms} | {len(answers)} | {' | '.join(rates)} |"


def table(answers: Sequence[Answer]) -> list[str]:
    """Return the table of rates: in total, by half and by kind."""
    rows = ["| cases | forms | number | first class | of first five | node |", "|---|---|---|---|---|---|"]
    rows.append(_row("all", answers))
    for split in "held-out", "development":
        of_split = [each for each in answers if each.case["split"] == split]
        rows.append(_row(split, of_split))
        by_kind = {kind: [each for each in of_split if each.case["kind"] == kind] for kind in ("real", "composed")}
        rows += [_row(f"{split}, {kind}", of_kind) for kind, of_kind in by_kind.items()]
    return rows


def classes(answers: Sequence[Answer]) -> list[str]:
    """Return the table of classes: right answers of each half, and the wrong answers of both."""
    rows = ["| class | held-out | development | instead |", "|---|---|---|---|"]
    for kind in sorted({each.case["class"] for each in answers}):
        of_class = [each for each in answers if each.case["class"] == kind]
        halves = [
            [each.is_first for each in of_class if each.case["split"] == half] for half in ("held-out", "development")
        ]
        wrong = Counter(each.kinds[0] if each.kinds else "unknown" for each in of_class if not each.is_first)
        instead = ", ".join(f"{name} {count}" for name, count in wrong.most_common())
        rows.append(f"| {kind} | {' | '.join(f'{sum(half)} of {len(half)}' for half in halves)} | {instead} |")
    return rows


def false_alarms(texts: Iterable[str], classifier: causes.Classifier) -> list[tuple[str, causes.Match]]:
    """Return the healthy logs in which a rule matches."""
    matches = [(text, classifier.match(text.split("\n"))) for text in texts]
    return [(text, match) for text, match in matches if match is not None]


def misled(cases: Sequence[Case], texts: Sequence[str], classifier: causes.Classifier, seed: int) -> tuple[int, int]:
    """Return the number of known failures with another answer beside eight healthy logs, and of all known failures."""
    rng, wrong, known = random.Random(seed), 0, 0
    for case in cases:
        logs = {name_log(log): log["text"].split("\n") for log in case["logs"]}
        alone = classifier.find(logs, {})
        if alone is None or alone.kind != case["class"]:
            continue
        healthy = {str(2000 + k): text.split("\n") for k, text in enumerate(rng.sample(texts, 8))}
        beside = classifier.find(logs | healthy, {})
        known += 1
        wrong += beside is None or (beside.kind, beside.rank) != (alone.kind, alone.rank)
    return wrong, known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=46)
    parser.add_argument("--misses", action="store_true")
    arguments = parser.parse_args()
    rules = causes.builtin()
    cases, records = load("cases.jsonl.xz"), load("healthy.jsonl.xz")
    healthy = [record["text"] for record in records]
    steady = [record["text"] for record in load("healthy-steady.jsonl.xz")]
    development = {record["text"] for record in records if record["split"] == "development"}
    answers = [answer(case, Once(rules), arguments.seed) for case in cases]
    print("\n".join([*table(answers), "", *classes(answers), ""]))
    classifier = causes.Classifier(rules)
    alarms = false_alarms(healthy, classifier)
    wrong, known = misled(cases, healthy, classifier, arguments.seed)
    for name, texts, named in (("healthy", healthy, alarms), ("steady", steady, false_alarms(steady, classifier))):
        print(f"{name} logs in which a rule matches: {len(named)} of {len(texts)} ({len(named) / len(texts):.2%})")
    print(f"failures with another answer beside eight healthy logs: {wrong} of {known} ({wrong / max(known, 1):.2%})")
    for each in answers if arguments.misses else ():
        if each.case["split"] == "development" and not (
            each.is_first and (each.is_right_node or each.case["root"] is None)
        ):
            print(f"\n== {each.case['id']}: {each.kinds}, node {each.node}, root {each.case['root']}")
            print("\n".join(each.case["logs"][0]["text"].split("\n")[-8:]))
    for text, match in alarms if arguments.misses else ():
        if text in development:
            print(f"\n== healthy: {match.kind}\n{text}")


if __name__ == "__main__":
    main()

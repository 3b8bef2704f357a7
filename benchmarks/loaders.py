"""Loaders of training data under one set of tests: order, resume, change of ranks and workers, kills, damaged files.

    python benchmarks/loaders.py [--peers PYTHON] [--only NAME …] [--kills 24] [--results FOLDER]

PYTHON is an interpreter with the peers: litdata, streaming-community, grain, torchdata, datasets, webdataset. A peer
that is absent is a row that says so. FOLDER keeps the results of each loader; present results are not measured again.
The machine needs no GPU. An hour on two processors.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).with_name("scripts")))

from loader_adapters import LOADERS
from loader_trial import NOT_INSTALLED

_TRIAL = Path(__file__).with_name("scripts") / "loader_trial.py"
_COLUMNS = (
    "loader", "version", "same sequence", "same sets", "resume", "resume at the end of an epoch", "changed topology",
    "kills, random topology", "kills, 2 × 2", "flipped bytes noticed", "truncation noticed", "state, bytes a rank",
)  # fmt: skip
_OWN = "m5ws"
_EPOCH_END = " at 40"


def run(name: str, python: str, kills: int) -> dict[str, Any] | None:
    """Return the results of a loader; None if it is not installed. Raises RuntimeError if its trial fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, str(_TRIAL), name, folder, str(kills)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == NOT_INSTALLED:
        return None
    if done.returncode:
        raise RuntimeError(f"the trial of {name} ended with status {done.returncode}")
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


def share(verdicts: Iterable[str], *good: str) -> str:
    listed = [*verdicts]
    return f"{sum(verdict in good for verdict in listed)} of {len(listed)}"


def show_kills(results: dict[str, Any]) -> str:
    """Return the number of kills, and the share of trainings whose steps have the right samples."""
    verdicts = [*Counter(results["verdicts"]).elements()]
    return f"{share(verdicts, 'same sequence', 'same sets')} trainings, {results['kills']} kills"


def row(title: str, results: dict[str, Any] | None) -> str:
    if results is None:
        return f"| {title} | not installed |{' – |' * (len(_COLUMNS) - 2)}"
    order, damage = results["order"].values(), results["damage"]
    cells = [results["version"], share(order, "same sequence"), share(order, "same sequence", "same sets")]
    if "resumes" in results:
        ends = [verdict for place, verdict in results["resumes"].items() if place.endswith(_EPOCH_END)]
        inner = [verdict for place, verdict in results["resumes"].items() if not place.endswith(_EPOCH_END)]
        cells += [share(inner, "exact"), share(ends, "exact"), share(results["changes"].values(), "exact")]
        cells += [show_kills(results["kills"]), show_kills(results["kills_fixed"])]
    else:
        cells += ["no state"] + ["–"] * 4
    for kind in ("flipped byte", "truncated"):
        cells.append(share(Counter(damage[kind]).elements(), "error"))
    cells.append(str(results["state_bytes"] // 4) if "state_bytes" in results else "–")
    return f"| {title} | {' | '.join(cells)} |"


def failures(results: dict[str, Any]) -> list[str]:
    """Return each kind of failure with its number."""
    found = Counter[str]()
    for part in ("resumes", "changes"):
        found.update(f"{part}: {verdict.splitlines()[0]}" for verdict in results.get(part, {}).values())
    for part in ("kills", "kills_fixed"):
        for verdict, number in results.get(part, {}).get("verdicts", {}).items():
            found[f"{part}: {verdict.splitlines()[0]}"] += number
    for kind, verdicts in results["damage"].items():
        for verdict, number in verdicts.items():
            found[f"{kind}: {verdict}"] += number
    good = ("exact", "same sequence", "same sets", ": error")
    return [f"{number} × {kind}" for kind, number in found.items() if not kind.endswith(good)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--only", nargs="+", default=[*LOADERS], choices=[*LOADERS])
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--failures", action="store_true", help="print the failures of each loader too")
    options = parser.parse_args()
    found: dict[str, dict[str, Any] | None] = {}
    for name in options.only:
        kept = options.results / f"{name}.json" if options.results else None
        if kept is not None and kept.exists():
            found[name] = json.loads(kept.read_text())
            continue
        found[name] = run(name, sys.executable if name == _OWN else options.peers, options.kills)
        if kept is not None and found[name] is not None:
            kept.write_text(json.dumps(found[name], indent=1) + "\n")
    print(f"| {' | '.join(_COLUMNS)} |\n|---|---|{'---:|' * (len(_COLUMNS) - 2)}")
    for name, results in found.items():
        print(row(LOADERS[name][0], results))
    if options.failures:
        for name, results in found.items():
            if results is not None:
                print(f"\n{LOADERS[name][0]}", *failures(results), sep="\n- ")


if __name__ == "__main__":
    main()

"""Make an environment for each row of tests/versions.toml, and run the main job, units and training tests there.

Called as: run_versions.py [--pythons FOLDER] [--folder FOLDER] [--index URL] [--keep] [ROW…]. The interpreter of a row
is `python3.X` on PATH, or FOLDER/3.X*/bin/python. The main job runs with the wheel, the tests with an editable
installation. Results are kept by row in tests/data/versions, and docs/reference/versions.md is made from all of them.

The exit status is 1 if a test fails that [[explained]] does not list, or if the main job fails. pip's own settings
apply.
"""

import argparse
import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "versions.toml"
RESULTS = ROOT / "tests" / "data" / "versions"
PAGE = ROOT / "docs" / "reference" / "versions.md"
LIBRARIES = ("torch", "deepspeed", "numpy", "mlflow", "dvc")
DRIFT = "loaded torch"
"""The beginning of a notice that a loaded torch is not the installed torch."""
PAGES_S = 180.0
"""A run does not wait for its page."""
Result = dict[str, Any]


def interpreter(version: str, folder: Path | None) -> str:
    """Return a Python of this version that runs; a name on PATH may be a shim that does not."""
    if folder:
        found = [str(path) for path in sorted(folder.glob(f"{version}*/bin/python"))]
    else:
        found = [f"{directory}/python{version}" for directory in os.get_exec_path()]
    command = ["-c", f"import sys; sys.exit('{version}' != '%d.%d' % sys.version_info[:2])"]
    for path in found:
        if os.path.isfile(path) and subprocess.run([path, *command], capture_output=True).returncode == 0:
            return path
    sys.exit(f"no Python {version} " + (f"in {folder}" if folder else "on PATH; --pythons names a folder"))


class Environment:
    """A virtual environment in a folder, with the operators that DeepSpeed compiles in it."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
        folder.chmod(0o755)  # Some tests run as another user.
        self._variables = {
            **os.environ,
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "",
            "TORCH_EXTENSIONS_DIR": f"{folder}/operators",
        }

    def run(self, *command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """Run a command, and return its output, with the errors."""
        both: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.run(command, cwd=cwd, env=self._variables, text=True, **both)

    def install(self, *arguments: str) -> None:
        """Install, or end with pip's output."""
        done = self.run("python", "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *arguments)
        if done.returncode:
            sys.exit(done.stdout)

    def versions(self) -> dict[str, str]:
        """Return the installed versions, as their metadata has them."""
        found = f"{{name: version(name) for name in {LIBRARIES}}}"
        code = f"import json; from importlib.metadata import version; print(json.dumps({found}))"
        installed: dict[str, str] = json.loads(self.run("python", "-c", code).stdout)
        return installed

    def help_ms(self) -> int:
        """Return the CPU time of `m5ws --help`, the least of ten, which other processes change least."""
        return min(self._cpu_ms("m5ws", "--help") for _ in range(10))

    def _cpu_ms(self, *command: str) -> int:
        before = os.times()
        self.run(*command, cwd=self.folder)
        after = os.times()
        used = (after.children_user - before.children_user) + (after.children_system - before.children_system)
        return round(1000 * used)


def main_job(environment: Environment) -> Result:
    """Run the README's demo, then train once more, with all notices. Each run has a page in MLflow."""
    demo = environment.folder / "demo"
    commands = (
        ("sh", str(ROOT / "examples" / "demo.sh"), str(demo)),
        ("m5ws", "-C", str(demo), "run", "--name", "notices"),
    )
    for command in commands:
        done = environment.run(*command, cwd=environment.folder)
        if done.returncode or DRIFT in done.stdout:
            return {"passed": False, "output": done.stdout[-2000:]}
    runs = len(list((demo / ".m5ws" / "store" / "runs").iterdir()))
    if (pages := ended_pages(demo / ".m5ws" / "mlflow" / "mlflow.db", runs)) < runs:
        log = (demo / ".m5ws" / "mlflow.log").read_text()
        return {"passed": False, "output": f"{pages} of {runs} runs have a page in MLflow\n{log[-2000:]}"}
    return {"passed": True}


def ended_pages(path: Path, wanted: int) -> int:
    """Return the number of runs that have ended in MLflow's database. Wait for the wanted number, up to a limit."""
    end_s = time.monotonic() + PAGES_S
    count = 0
    while count < wanted and time.monotonic() < end_s:
        time.sleep(1)
        with (
            contextlib.suppress(sqlite3.OperationalError),
            contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as pages,
        ):
            (count,) = pages.execute("SELECT count(*) FROM runs WHERE status != 'RUNNING'").fetchone()
    return count


def tests(environment: Environment, paths: Sequence[str], workers: str) -> Result:
    """Run tests, and return their counts and the names of failed and skipped tests."""
    report = environment.folder / "report.xml"
    report.unlink(missing_ok=True)
    done = environment.run(
        "python", "-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider", f"--junitxml={report}", *paths
    )
    sys.stdout.write(done.stdout[-20000:])
    if not report.exists():
        sys.exit("pytest ended without a report")
    return counted(ET.parse(report).getroot())  # noqa: S314  # our own pytest wrote it


def counted(root: ET.Element) -> Result:
    """Return the counts and failures in a report of pytest, and the reasons of skipped tests with their numbers."""
    result: Result = {"passed": 0, "failed": [], "skipped": {}}
    for case in root.iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name', '')}"
        if case.find("failure") is not None or case.find("error") is not None:
            result["failed"].append(name)
        elif (skipped := case.find("skipped")) is not None:
            reason = skipped.get("message", "")
            result["skipped"][reason] = result["skipped"].get(reason, 0) + 1
        else:
            result["passed"] += 1
    result["failed"] = sorted(set(result["failed"]))
    return result


def run_row(row: Result, suites: dict[str, list[str]], wheel: Path, options: argparse.Namespace) -> Result:
    """Make the environment of a row, and return its results."""
    python = interpreter(row["python"], options.pythons)
    folder = Path(tempfile.mkdtemp(prefix="m5ws-versions-", dir=options.folder))
    try:
        environment = Environment(folder, python)
        index = ["--extra-index-url", options.index] if options.index else []
        pins = (f"{name}=={row[name]}" for name in LIBRARIES if name in row)
        environment.install(*index, f"m5ws[all,test] @ {wheel.as_uri()}", *pins, *row.get("with", []))
        result: Result = {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "python": environment.run(
                "python", "-c", "import platform; print(platform.python_version())"
            ).stdout.strip(),
            **environment.versions(),
            "help_ms": environment.help_ms(),
            "main job": main_job(environment),
        }
        environment.install("--no-deps", "--editable", ".")
        result["suites"] = {name: tests(environment, paths, options.workers) for name, paths in suites.items()}
        return result
    finally:
        if not options.keep:
            shutil.rmtree(folder)


def explanation(table: Result, row: str, test: str) -> str:
    """Return why a test fails in a row, as the table explains it; empty if it does not."""
    reasons = (
        each["reason"] for each in table.get("explained", []) if row in each["rows"] and test.startswith(each["test"])
    )
    return next(reasons, "")


def failures(results: dict[str, Result]) -> Iterator[tuple[str, str]]:
    """Yield the row and the name of each test that failed."""
    for row, result in results.items():
        yield from ((row, test) for suite in result["suites"].values() for test in suite["failed"])


def page(table: Result, results: dict[str, Result]) -> str:
    """Return the page, in Markdown."""
    suites = tuple(table["suites"])
    heads = ("row", "Python", *LIBRARIES, "main job", *suites, "`m5ws --help`", "date")
    lines = [
        "# Tested versions", "", "Made by `make versions` from the rows of `tests/versions.toml`. Do not edit it.", "",
        "The main job is the README's demo: train, reproduce, change one number. It runs with the built wheel, and",
        "passes only if no notice says that the loaded torch is not the installed torch. The tests are shown as",
        "passed / failed / skipped. `m5ws --help` is CPU time, the least of ten.", "",
        _line(heads), _line("---" for _ in heads),
    ]  # fmt: skip
    lines += [_line(_cells(name, row, results.get(name), suites)) for name, row in table["row"].items()]
    lines += ["", "## Failures", ""]
    failed = [
        f"- `{test}` in {row}: {explanation(table, row, test) or '**not explained**'}"
        for row, test in failures(results)
    ]
    lines += failed or ["None."]
    lines += ["", "## Skipped tests", ""]
    skipped = {(row, reason): count for row, each in results.items() for suite in each["suites"].values()
               for reason, count in suite["skipped"].items()}  # fmt: skip
    lines += [f"- {count} in {row}: {reason}" for (row, reason), count in skipped.items()] or ["None."]
    return "\n".join(lines) + "\n"


def _cells(name: str, row: Result, result: Result | None, suites: Sequence[str]) -> Iterator[str]:
    yield name
    yield from (str((result or row).get(key, "newest")) for key in ("python", *LIBRARIES))
    if result is None:
        yield from ("not run" for _ in range(len(suites) + 3))
        return
    yield "passed" if result["main job"]["passed"] else "**failed**"
    for each in (result["suites"][suite] for suite in suites):
        yield f"{each['passed']} / {len(each['failed'])} / {sum(each['skipped'].values())}"
    yield f"{result['help_ms']} ms"
    yield str(result["date"])


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def load() -> tuple[Result, dict[str, Result]]:
    """Return the table, and the results of its rows."""
    table = tomllib.loads(TABLE.read_text())
    paths = {name: RESULTS / f"{name}.json" for name in table["row"]}
    return table, {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--pythons", type=Path, help="A folder of Pythons, as pyenv has it; PATH if it is not given.")
    parser.add_argument("--index", help="A second index of packages, as that with torch's builds for a CPU.")
    parser.add_argument("--folder", type=Path, help="A folder for the environments, of up to 7 GB each, one at a time.")
    parser.add_argument("--keep", action="store_true", help="Keep the environments.")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--page", action="store_true", help="Only write the page again.")
    return parser.parse_args()


def main() -> int:
    options = _parsed()
    table, results = load()
    if unknown := set(options.rows) - table["row"].keys():
        sys.exit(f"no row {', '.join(sorted(unknown))}; rows: {', '.join(table['row'])}")
    rows = [] if options.page else options.rows or list(table["row"])
    with tempfile.TemporaryDirectory() as folder:
        if rows:
            command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, str(ROOT)]
            subprocess.run(command, check=True)
        for name in rows:
            (wheel,) = Path(folder).glob("*.whl")
            results[name] = run_row(table["row"][name], table["suites"], wheel, options)
            (RESULTS / f"{name}.json").write_text(json.dumps(results[name], indent=1) + "\n")
            PAGE.write_text(page(*load()))
    PAGE.write_text(page(*load()))
    new = {name: results[name] for name in rows}
    bad = [f"{row}: {test}" for row, test in failures(new) if not explanation(table, row, test)]
    bad += [
        f"{name}: main job\n{each['main job']['output']}"
        for name, each in new.items()
        if not each["main job"]["passed"]
    ]
    sys.stdout.write("".join(f"not explained: {line}\n" for line in bad))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())

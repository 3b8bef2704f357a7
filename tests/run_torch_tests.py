"""Run PyTorch's own tests of checkpoint storage with the repository's writer and reader.

Called as: run_torch_tests.py FOLDER FILE…, where FOLDER is test/distributed/checkpoint of PyTorch's repository, at the
installed version. The tests need expecttest. `--torch` runs them with torch's own writer and reader, to find tests
that fail without m5ws. docs/torch-tests.md has the results.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(arguments: list[str]) -> int:
    """Run the files, each behind an import that replaces torch's names, and return pytest's exit status."""
    own = "--torch" in arguments
    folder, *names = (argument for argument in arguments if argument != "--torch")
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            text = (Path(folder) / name).read_text()
            (Path(scratch) / Path(name).name).write_text("from tests.support.files import torch_storage\n" + text)
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-m", "pytest", "-q", "-rA", "--show-capture=no", "-W", "ignore", "--rootdir", "."]
        command += [Path(name).name for name in names]
        variables = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        variables |= {"TORCH_STORAGE": "torch"} if own else {}
        process = subprocess.run(command, check=False, cwd=scratch, env=os.environ | variables)
        return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A script that reads a tokenizer from a folder outside the workspace, and writes a file that depends on it."""

import json
import multiprocessing
import os
import sys
from pathlib import Path


def read(path: str) -> int:
    with open(path) as file:
        return len(file.read())


def main() -> None:
    shared = Path(sys.argv[1])
    tokenizer = json.loads((shared / "tokenizer.json").read_text())
    with multiprocessing.get_context("fork").Pool(2) as pool:
        sizes = pool.map(read, [str(shared / "words.txt")] * 4)
    os.makedirs("out", exist_ok=True)
    Path("out/result.json").write_text(json.dumps({"loss": len(tokenizer) / 4, "sizes": sizes}))


if __name__ == "__main__":
    main()

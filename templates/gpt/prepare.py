"""Make data/corpus.txt and train a tokenizer on it: `python prepare.py [TEXT]`.

TEXT is a text file or a folder of them; without it, the sources of Python's standard library are the corpus. The same
input gives the same bytes. The next `m5ws snapshot` pins both files.
"""

import argparse
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from ruamel.yaml import YAML
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).parent


def texts(source: Path) -> Iterator[str]:
    """Yield the content of every text file of `source`, in the order of their paths; other files are skipped."""
    files = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    for file in files:
        if not {"site-packages", "__pycache__", ".git", ".m5ws"}.intersection(file.parts):
            try:
                yield file.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def corpus(source: Path, limit_bytes: int) -> str:
    """Return the texts of `source` joined, cut at `limit_bytes` bytes of UTF-8."""
    parts, size = [], 0
    for text in texts(source):
        data = text.encode()[: limit_bytes - size]
        parts.append(data.decode(errors="ignore"))
        size += len(data)
        if size >= limit_bytes:
            break
    return "".join(parts)


def train_tokenizer(text: str, vocabulary: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer: it has a token for every byte, so there is no unknown text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def main() -> None:
    cfg = YAML(typ="safe").load(HERE / "config.yaml")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="?", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--limit-mb", type=float, default=1.5, help="size of the corpus (default: 1.5)")
    arguments = parser.parse_args()
    if not arguments.text.exists():
        parser.error(f"no such file or folder: {arguments.text}")

    text = corpus(arguments.text, int(arguments.limit_mb * 1e6))
    window = cfg["batch_size"] * cfg["length"]
    if len(text) < 8 * window:
        parser.error(f"{arguments.text} has too little text for batches of {window:,} tokens: {len(text):,} characters")
    tokenizer = train_tokenizer(text, cfg["vocabulary"])
    for folder in ("data", "tokenizer"):
        (HERE / folder).mkdir(exist_ok=True)
    (HERE / "data" / "corpus.txt").write_text(text, encoding="utf-8", newline="")
    tokenizer.save(str(HERE / "tokenizer" / "tokenizer.json"))
    print(f"data/corpus.txt: {len(text):,} characters of {arguments.text}")
    print(f"tokenizer/tokenizer.json: {tokenizer.get_vocab_size():,} tokens")


if __name__ == "__main__":
    main()

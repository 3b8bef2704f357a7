#!/usr/bin/env python3
"""Check the prose of docstrings, comments, messages and documents by the rules of CONTRIBUTING.md ("Prose").

`.ci/prose.py [PATH …]` prints each line that breaks a rule, and exits with 1 if there is one. `--count` prints the
number of each package instead. The rules find habits, and do not replace a reader.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

FREE_RELATIVE = re.compile(r"\A(Returns?|Yields?|Tells?|Says?) (if )?(what|which|who|where|whether|how|for)\b")
"""A docstring begins with the noun that is returned. A predicate begins with "Return True if"."""
PHRASES = re.compile(
    r"\banew\b|\bheld against\b|\b(for|of|to|by) who\b|\bof which what\b|\bwhat (is|was|were|are) (said|told|asked)\b"
    r"|\b(is|are|was|were) told apart\b|\b(records?|stores?|files?|objects?|packs?) (say|says|tell|tells|lie|lies|vouch"
    r"|vouches|promise|promises|know|knows)\b|\b(nobody|somebody|who) (lies|says|tells|asks)\b",
    re.IGNORECASE,
)
WHAT = re.compile(r"\bwhat\b(?! (to do|happened|changed|differs))", re.IGNORECASE)
"""The four allowed phrases are plain English."""
PRONOUNS = re.compile(
    r"\b(that of|ones(?!\()|(the|all|any) others|one of them|(?<!no )one (that|which|whose|with|without)"
    r"|(another|each|every|no|(an?|the) [\w-]+) one)\b"
    r"|\b(those|such|(the|all|any) other|the one|one of (these|those)|(this|that) one(?! of))"
    r"(?=[.,;:!?)]|\Z| (after|alone|and|are|around|as it|at|before|below|beside|between|but|by|can|did|do|does|for|from"
    r"|had|has|have|if|in|inside|is|it|m5ws|may|missing|must|not|of|on|only|or|read|taken|than|that|they|to|until|was"
    r"|were|when|where|which|while|who|whose|with|without|\w+ed|x)\b)",
    re.IGNORECASE,
)
"""Words that stand for a noun which the sentence does not name. A noun after "those", "such" or "the other" is fine."""
TEST_NAME = re.compile(r"_(anew|asked|knows|lies|ones|said|says?|such|tells?|those|told|what|who|whose)(_|\Z)")
"""The name of a test states its rule as subject, verb and object."""
WORDS_AT_MOST = 40
"""A sentence has 25 words. Longer sentences are mostly lists: this bound finds the sentences that are not."""


def texts(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, the text and True for a docstring, for each text of a file that a person reads."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from paragraphs(content)
        return
    tree = ast.parse(content)
    docs = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name, False
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            docs |= {first.value} if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value, node in docs
    comments = [t for t in tokenize.generate_tokens(io.StringIO(content).readline) if t.type == tokenize.COMMENT]
    block: list[str] = []
    for number, token in enumerate(comments):
        block.append(token.string.lstrip("# "))
        following = comments[number + 1] if number + 1 < len(comments) else None
        if following is None or following.start[0] != token.start[0] + 1:
            yield token.start[0] - len(block) + 1, " ".join(block), False
            block = []


def paragraphs(content: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the paragraphs of a Markdown file, without its code blocks and tables."""
    fenced, block, begin = False, [], 0
    for number, line in enumerate([*content.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        item = re.match(r"\s*([-*]|\d+\.) ", line)
        if block and (fenced or item or not line.strip() or line.startswith(("#", "|", "    "))):
            yield begin, " ".join(block), False
            block = []
        if not fenced and line.strip() and not line.startswith(("#", "|", "    ", "```")):
            begin = begin if block else number
            block.append(line.strip())


def faults(text: str, is_docstring: bool) -> Iterator[str]:
    """Yield the rules that a text breaks."""
    if is_docstring and FREE_RELATIVE.search(text):
        yield "name the noun that is returned"
    for match in PHRASES.finditer(text):
        yield f"private phrase: {match[0]}"
    if text.startswith("test_") and (word := TEST_NAME.search(text)) is not None:
        yield f"a name of a test with {word[1]}"
    bare = re.sub(r"`[^`]*`|\([^)]*\)|\[[^]]*\]", "x", text)
    for match in PRONOUNS.finditer(re.sub(r"`[^`]*`", "x", " ".join(text.split()))):
        yield f"name the noun: {match[0]}"
    for sentence in re.split(r"(?<=[.?!:;])\s+", bare):
        if WHAT.search(sentence) and "?" not in sentence:
            yield f"a noun instead of what: {sentence[:60]}"
        if (count := len(sentence.split())) > WORDS_AT_MOST:
            yield f"{count} words: {sentence[:60]}"


def checked(arguments: list[str]) -> list[Path]:
    """Return the files to check: those below the arguments, or all of the project's."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *(arguments or ["."])]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    # This file has the words that it looks for.
    wanted = [Path(name) for name in names if name.endswith((".py", ".md")) and Path(name).name != Path(__file__).name]
    return [path for path in wanted if "data" not in path.parts and path.is_file() and not path.is_symlink()]


def main(arguments: list[str]) -> int:
    """Print the faults of the files, and return the exit status."""
    counts: Counter[str] = Counter()
    for path in checked([one for one in arguments if one != "--count"]):
        for line, text, is_docstring in texts(path):
            for fault in faults(text, is_docstring):
                counts["/".join(path.parts[:2])] += 1
                if "--count" not in arguments:
                    print(f"{path}:{line}: {fault}")
    if "--count" in arguments:
        print(*(f"{count:6} {place}" for place, count in sorted(counts.items())), sep="\n")
    return int(bool(counts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

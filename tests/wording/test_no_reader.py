"""No code decides by a sentence: outside of `m5ws.wording`, nothing compares, searches or parses a text for people."""

import ast
from collections.abc import Iterator
from pathlib import Path

import m5ws

_ROOT = Path(m5ws.__file__).parent
_TEXTS = {"detail", "hint", "message", "problem", "words"}
"""Fields that are texts for people."""
_READERS = {"endswith", "find", "index", "match", "partition", "removeprefix", "rpartition", "search", "startswith"}


def _find_readers(tree: ast.Module) -> Iterator[str]:
    """Yield each comparison with a text, and each call that searches a text."""
    words = _find_words(tree)
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Compare) and not _is_none(node.comparators[0]):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _READERS:
            parts = [node.func.value, *node.args]
        if any(_is_text(part, words) for part in parts):
            yield ast.unparse(node)


def _find_words(tree: ast.Module) -> set[str]:
    """Return the names that a module imports from `m5ws.wording`."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {
        name.asname or name.name
        for node in imports
        if (node.module or "").startswith("m5ws.wording")
        for name in node.names
    }


def _is_text(node: ast.expr, words: set[str]) -> bool:
    if isinstance(node, ast.BoolOp):
        return any(_is_text(value, words) for value in node.values)
    if isinstance(node, ast.Call):
        callee = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        return isinstance(callee, ast.Name) and callee.id in words
    return isinstance(node, ast.Attribute) and node.attr in _TEXTS


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def test_no_module_compares_or_searches_a_text_for_people() -> None:
    readers = [
        f"{path.relative_to(_ROOT)}: {reader}"
        for path in sorted(_ROOT.rglob("*.py"))
        if not {"wording", "terminal"} & set(path.relative_to(_ROOT).parts)
        for reader in _find_readers(ast.parse(path.read_text()))
    ]
    assert readers == []

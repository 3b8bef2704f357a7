"""No file of m5ws imports itself through other files."""

import grimp


def _circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the modules that reach themselves, by the modules that each imports."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        found, todo = set[str](), [start]
        while todo:
            new = imports[todo.pop()] - found
            found |= new
            todo += new
        reached[start] = found
    circles = {tuple(sorted(other for other in reached[m] if m in reached[other])) for m in imports if m in reached[m]}
    return sorted(map(list, circles))


def test_no_module_imports_itself_indirectly() -> None:
    """All imports count, also imports inside functions and for type checkers alone: a reader follows them too."""
    graph = grimp.build_graph("m5ws", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 200
    assert _circles(imports) == []

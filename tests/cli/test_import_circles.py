"""No module of the package imports itself by way of others, imports for type checking counted.

The import contract holds folders to it too, but for two edges; modules have no exception.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import pytest

grimp = pytest.importorskip("grimp", reason="import-linter is not installed: pip install -e '.[dev]'")


def find_circle(imports: dict[str, set[str]]) -> list[str]:
    """A circle of modules that import each other; empty where there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_there_are_no_import_circles() -> None:
    graph = grimp.build_graph("phobos", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 300
    assert find_circle(imports) == []


def test_a_circle_is_found() -> None:
    assert set(find_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert find_circle({"a": {"b", "c"}, "b": {"c"}}) == []

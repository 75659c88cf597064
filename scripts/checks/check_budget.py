"""Fail when a Python file or function is longer than the budget: 500 lines a file, 60 a function (kernels: 120)."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_KERNEL_LINES = 120
ROOT = Path(__file__).resolve().parents[2]


def measure_file(path: Path, name: str) -> list[str]:
    """The budget broken by one file, a sentence each; `name` is how the file is called in them."""
    text = path.read_text(encoding="utf-8")
    n_lines = text.count("\n")
    found = [f"{name}: {n_lines} lines, at most {MAX_FILE_LINES}"] if n_lines > MAX_FILE_LINES else []
    limit = MAX_KERNEL_LINES if "code" in Path(name).parts else MAX_FUNCTION_LINES
    for node in ast.walk(ast.parse(text, filename=name)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
            continue
        length = node.end_lineno - node.lineno + 1
        if length > limit:
            found.append(f"{name}:{node.lineno}: {node.name} has {length} lines, at most {limit}")
    return found


def check_tree(root: Path) -> list[str]:
    """Every breach under `src`, `tests` and `scripts`."""
    found: list[str] = []
    for folder in ("src", "tests", "scripts"):
        for path in sorted((root / folder).rglob("*.py")):
            found += measure_file(path, path.relative_to(root).as_posix())
    return found


if __name__ == "__main__":
    breaches = check_tree(ROOT)
    print("\n".join(breaches), file=sys.stderr, end="\n" if breaches else "")
    sys.exit(1 if breaches else 0)

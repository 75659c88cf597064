"""Fail when a Python file, function or folder is over the budget: 500 lines a file, 60 a function (kernel source: 120),
20 modules a folder of the package unless all are of one kind."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_KERNEL_LINES = 120
MAX_FILES = 20
OF_ONE_KIND = {"archs", "code", "families", "types"}
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
    return found + check_folders(root)


def check_folders(root: Path) -> list[str]:
    """Folders of the package with so many modules that a reader cannot choose among them at a glance."""
    found = []
    for folder in sorted({path.parent for path in (root / "src").rglob("*.py")}):
        n_files = sum(path.name != "__init__.py" for path in folder.glob("*.py"))
        if n_files > MAX_FILES and folder.name not in OF_ONE_KIND:
            found.append(f"{folder.relative_to(root).as_posix()}: {n_files} modules, at most {MAX_FILES}")
    return found


if __name__ == "__main__":
    breaches = check_tree(ROOT)
    print("\n".join(breaches), file=sys.stderr, end="\n" if breaches else "")
    sys.exit(1 if breaches else 0)

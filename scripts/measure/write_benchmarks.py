"""Measure the models that are here and write the table of docs/benchmarks.md.

    python scripts/measure/write_benchmarks.py [--against llama.cpp] [--repetitions N] [--depth N ...] [--deep N]
                                               [--types] [MODEL.gguf or FOLDER ...]

Each model, of `models/` unless others are named, is measured by `phobos-cli bench`, in a process of its own: one run to
warm up, then `--repetitions` runs of each kind, the peer's in turn with ours. The table gives medians with the least
and the most, and beside them what the machine could read and multiply then. `--deep N` measures the largest model again
behind N tokens, `--types` the products of every tensor type (`phobos-cli bench --types all`). What the page says from
`KEPT` on, by processor, is kept by hand. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
KEPT = "## By processor"
VERSIONS = ("numba", "llvmlite", "numpy")
METHOD = """\
`make bench` writes this page: every model file is measured by `phobos-cli bench`, a process each. `pp512` is a prompt
of 512 random tokens in one pass, `tg128` 128 single tokens one after the other, `x8` eight conversations that decode
together, `@ d4096` the same with 4096 tokens before. One run of each kind warms up, then timed ones{turns} follow,
{repetitions} of each; the table has the median, and the least and the most. *GB/s* are the packed weights' bytes that a
decode pass reads, *of limit* their share of what all threads read from memory in the same process (a region of half a
gigabyte, the best of many probes before and after the runs)."""
TYPES_METHOD = """\
`phobos-cli bench --types all`: one row of activations with matrices of half a gigabyte, 8 and 512 rows with a part of
them; the fastest of five turns through all types. A multiply and an add count as two operations."""


def find_models(given: list[Path]) -> list[Path]:
    """The model files named, those of folders included, smallest first; `SystemExit` where there is none."""
    models = [file for path in given for file in (sorted(path.glob("*.gguf")) if path.is_dir() else [path])]
    if not models:
        raise SystemExit(f"there is no model in {', '.join(map(str, given))}: give the path of a .gguf file")
    missing = [str(model) for model in models if not model.is_file()]
    if missing:
        raise SystemExit(f"there is no file {', '.join(missing)}: check the path")
    return sorted(models, key=lambda model: model.stat().st_size)


def measure(model: Path, given: argparse.Namespace, depths: list[int], rows: list[int]) -> dict[str, Any]:
    """What `phobos-cli bench --json` says of a model."""
    command = [sys.executable, "-m", "phobos.cli", "bench", str(model), "--json", "-r", str(given.repetitions)]
    command += ["-p", str(given.n_prompt), "-n", str(given.n_gen)]
    for flag, values in (("--rows", rows), ("--depth", depths)):
        command += [word for value in values for word in (flag, str(value))]
    if given.against:
        command += ["--against", given.against]
    print(f"measuring {model.name}{' behind ' + str(depths[-1]) + ' tokens' if depths[-1] else ''}", file=sys.stderr)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{model.name} could not be measured: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def describe_machine(found: dict[str, Any], given: argparse.Namespace) -> list[str]:
    """The lines above the tables."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS)
    lines = [
        f"- processor: {found['processor']}, {found['threads']} threads, path `{found['path']}`",
        f"- {platform.system()} {platform.machine()}; Phobos {found['phobos']}, Python {platform.python_version()}, "
        + versions,
    ]
    if given.against:
        lines.append(f"- peer: llama.cpp by llama-cpp-python {importlib.metadata.version('llama-cpp-python')}")
    return [*lines, f"- {time.strftime('%Y-%m-%d', time.gmtime())}"]


def write_table(found: dict[str, Any]) -> list[str]:
    """A model's lines."""
    limits = found["limits"]
    able = f"reads {limits['read_gbs']:.1f} GB/s, multiplies {limits['int8_gops']:.0f} Gop/s (int8)"
    against = any(result["peer_median"] for result in found["results"])
    lines = ["", f"## {found['model']}, {found['quantization']}", "", f"The machine {able}.", ""]
    lines.append("| run | tok/s | spread | GB/s | of limit |" + (" llama.cpp | ratio |" if against else ""))
    lines.append("|---|---:|---:|---:|---:|" + ("---:|---:|" if against else ""))
    for result in found["results"]:
        gbs = result["weights_gbs"]
        cells = [result["run"], f"{result['median']:.1f}", f"{result['low']:.1f}-{result['high']:.1f}"]
        cells += [f"{gbs:.1f}", f"{gbs / limits['read_gbs']:.0%}"] if gbs else ["", ""]
        if against:
            peer = result["peer_median"]
            cells += [f"{peer:.1f}", f"{result['ratio']:.2f}"] if peer else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def measure_types() -> list[str]:
    """The lines about the products of every type."""
    print("measuring types", file=sys.stderr)
    done = subprocess.run(
        [sys.executable, "-m", "phobos.cli", "bench", "--types", "all"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"the types could not be measured: {done.stderr.strip()}")
    return ["", "## Products of every tensor type", "", TYPES_METHOD, "", *done.stdout.rstrip().splitlines()]


def read_kept(page: Path) -> list[str]:
    """What stands on the page by processor: it is not measured anew."""
    _, heading, kept = page.read_text().partition(KEPT) if page.exists() else ("", "", "")
    return ["", *(heading + kept).rstrip().splitlines()] if heading else []


def main() -> None:
    """Measure, and write the page once all is measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.gguf or FOLDER", default=[ROOT / "models"])
    parser.add_argument("--against", choices=["llama.cpp"], help="run the peer in turn with Phobos")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--n-prompt", type=int, default=512, help="tokens of the prompt runs")
    parser.add_argument("--n-gen", type=int, default=128, help="tokens of the decode runs")
    parser.add_argument("--depth", type=int, action="append", help="tokens before (0 unless given; several times)")
    parser.add_argument("--deep", type=int, metavar="N", help="the largest model once more behind N tokens")
    parser.add_argument("--types", action="store_true", help="also the products of every tensor type")
    parser.add_argument("--quick", action="store_true", help="only single conversations")
    parser.add_argument("--out", type=Path, default=PAGE)
    given = parser.parse_args()
    models = find_models(given.models)
    rows = [1] if given.quick else [1, 8]
    measured = [measure(model, given, given.depth or [0], rows) for model in models]
    if given.deep:
        measured[-1]["results"] += measure(models[-1], given, [given.deep], [1])["results"]
    turns = ", ours and the peer's in turn," if given.against else ""
    lines = ["# Benchmarks", "", METHOD.format(repetitions=given.repetitions, turns=turns), ""]
    lines += describe_machine(measured[0], given)
    for found in measured:
        lines += write_table(found)
    if given.types:
        lines += measure_types()
    given.out.write_text("\n".join([*lines, *read_kept(given.out)]) + "\n")
    print(f"{given.out} is written", file=sys.stderr)


if __name__ == "__main__":
    main()

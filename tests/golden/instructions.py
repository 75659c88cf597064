"""What the hot loops of kernels take in instructions: a guard against slow code that no noisy machine disturbs.

    PYTHONPATH=tests python -m golden.instructions [--write]

Kernels are compiled for one processor, whatever runs here, and their assembly is counted: instructions for each dot
product or multiply-add, and those that touch the stack, which is where values go that registers have no room for.
`--write` keeps the counts in `instructions.json`, which the slow tests hold the kernels to; write them again with a
change of a kernel, and look at what became of them.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from assembly import Work, assembly_of, count_work

KEPT = Path(__file__).with_name("instructions.json")
PATH = "avx512vnni"
#: Kernels, and the instruction that does their work.
COUNTED = {
    "matmul:matmul_q4_k": "vpdpbusd",
    "matmul:matmul_q6_k": "vpdpbusd",
    "matmul:matmul_q8_0": "vpdpbusd",
    "attention:attention_f16_f16": "vfmadd",
    "attention:attention_q8_0_q8_0": "vpdpbusd",
}


def count(kernel: str) -> Work:
    """The work of one kernel."""
    return count_work(assembly_of(PATH, kernel), COUNTED[kernel])


def main() -> None:
    """Print what was kept beside what is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="keep the counts")
    given = parser.parse_args()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    counted = {kernel: asdict(count(kernel)) for kernel in COUNTED}
    for kernel, work in counted.items():
        print(f"{kernel:32} {work}  kept: {kept.get(kernel)}", flush=True)
    if given.write:
        KEPT.write_text(json.dumps(counted, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The hot loops of kernels stay as short as they were: see `golden/instructions.py`."""

from __future__ import annotations

import json

import pytest

from assembly import Work, count_work
from golden import instructions

SLACK = 1.05  # another version of the compiler may order things differently


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kernel", instructions.COUNTED)
def test_hot_loops_are_no_longer_than_they_were(kernel: str) -> None:
    kept = Work(**json.loads(instructions.KEPT.read_text())[kernel])
    found = instructions.count(kernel)
    assert found.n_wanted > 0
    a_product, wanted = found.n_instructions / found.n_wanted, kept.n_instructions / kept.n_wanted
    assert a_product <= SLACK * wanted, f"{a_product:.2f} instructions a product, {wanted:.2f} before"
    assert found.n_stack <= SLACK * kept.n_stack + 4, f"{found.n_stack} touch the stack, {kept.n_stack} before"


def test_counting() -> None:
    """Only blocks with the instruction four times count, and labels end a block."""
    hot = "\tvpdpbusd\t(%rax), %zmm1, %zmm2\n" * 4 + "\tvmovups\t64(%rsp), %zmm3\n\tjne\t.LBB0_1\n"
    text = f"entry:\n\tvpdpbusd\t%zmm0, %zmm1, %zmm2\n\tpushq\t%rbp\n.LBB0_1:\n{hot}# %bb.2:\n.LBB0_3:\n\tretq\n"
    assert count_work(text, "vpdpbusd") == Work(4, 6, 1)

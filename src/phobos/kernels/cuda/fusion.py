"""Which products of a program run as one launch where few rows are computed: two neighbours of the same input, whose
weights are of one type and shape, like those of gate and up, or of keys and values.

Their weights lie one behind the other, so that the second is the first's next matrix to the kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from phobos.kernels.cuda.weights import Weight
from phobos.program.steps import MatMul, Op, Program, matrices_of


def find_pairs(program: Program, weights: Mapping[str, Weight]) -> dict[int, MatMul]:
    """The second product of each pair, by the place of the first among the ops."""
    n_uses = Counter(name for op in program.ops for name in matrices_of(op))
    pairs: dict[int, MatMul] = {}
    for i, (first, second) in enumerate(zip(program.ops, program.ops[1:], strict=False)):
        if i - 1 not in pairs and _is_plain(first, weights, n_uses) and _is_plain(second, weights, n_uses):
            assert isinstance(first, MatMul) and isinstance(second, MatMul)
            one, other = weights[first.weight], weights[second.weight]
            is_alike = (one.kind, one.shape, first.x, first.scale) == (other.kind, other.shape, second.x, second.scale)
            if is_alike and first.out not in (second.out, second.x):
                pairs[i] = second
    return pairs


def _is_plain(op: Op, weights: Mapping[str, Weight], n_uses: Mapping[str, int]) -> bool:
    """Whether an op is a product with the whole of a matrix that nothing else reads, and nothing more."""
    return (
        isinstance(op, MatMul)
        and (op.bias, op.residual, op.first_row) == (None, None, 0)
        and n_uses[op.weight] == 1
        and weights[op.weight].shape[0] == op.out.width
    )


def name_pairs(program: Program, weights: Mapping[str, Weight]) -> dict[str, str]:
    """The names of the weights of pairs, the second by the first."""
    found = {}
    for i, second in find_pairs(program, weights).items():
        first = program.ops[i]
        assert isinstance(first, MatMul)
        found[first.weight] = second.weight
    return found

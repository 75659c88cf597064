"""What `mma.sync` computes on 8-bit fragments, by the layouts the PTX manual gives for m16n8k16 and m16n8k32.

Lane l has group g = l // 4 and place t = l % 4. Of A, register i holds columns 4t to 4t+3 (plus 16 for registers 2 and
3) of row g (even registers) or g + 8 (odd); of B, register i holds rows 4t to 4t+3 (plus 16 i) of column g; of C and D,
registers 0 and 1 are row g, columns 2t and 2t+1, registers 2 and 3 row g + 8.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LANES = np.arange(32)
GROUP, PLACE = LANES // 4, LANES % 4


def _bytes_of(words: np.ndarray, kind: str) -> np.ndarray:
    """[n_warps, 32, 4] integers of words [n_warps, 32]."""
    packed = np.ascontiguousarray(words.astype(np.uint32)).view(np.uint8).reshape(*words.shape, 4)
    return (packed.view(np.int8) if kind == "s8" else packed).astype(np.int32)


def multiply_fragments(
    parts: tuple[str, ...], a: Sequence[np.ndarray], b: Sequence[np.ndarray], c: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The registers of D: each [n_warps, 32] uint32."""
    assert parts[:3] == ("mma", "sync", "aligned") and parts[4:7] == ("row", "col", "s32"), parts
    depth = {"m16n8k16": 16, "m16n8k32": 32}[parts[3]]
    n_warps = len(a[0])
    left, right = np.zeros((n_warps, 16, depth), np.int32), np.zeros((n_warps, depth, 8), np.int32)
    for i, words in enumerate(a):
        values = _bytes_of(words, parts[7])
        for k in range(4):
            left[:, GROUP + 8 * (i % 2), 4 * PLACE + 16 * (i // 2) + k] = values[:, :, k]
    for i, words in enumerate(b):
        values = _bytes_of(words, parts[8])
        for k in range(4):
            right[:, 4 * PLACE + 16 * i + k, GROUP] = values[:, :, k]
    product = left @ right
    rows = (GROUP, GROUP, GROUP + 8, GROUP + 8)
    columns = (2 * PLACE, 2 * PLACE + 1, 2 * PLACE, 2 * PLACE + 1)
    return [
        (product[:, row, column] + words.astype(np.uint32).view(np.int32)).view(np.uint32)
        for row, column, words in zip(rows, columns, c, strict=True)
    ]

"""Writes the protocol-buffer message that the `sentencepiece` library loads, from a vocabulary's pieces.

Field numbers are those of `sentencepiece_model.proto`: `ModelProto` {1: pieces, 2: trainer_spec, 3: normalizer_spec},
`SentencePiece` {1: piece, 2: score, 3: type}, `TrainerSpec` {3: model_type, 35: byte_fallback, 40..43: special ids},
`NormalizerSpec` {1: name, 2: precompiled_charsmap, 3: add_dummy_prefix, 4: remove_extra_whitespaces,
5: escape_whitespaces}. GGUF's token types are the library's own numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

UNIGRAM, BPE = 1, 2
JOINED = 1024  # pieces at a time: `join` takes ten times the memory of so short parts
_VARINT, _BYTES, _FLOAT = 0, 2, 5


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers are sent as 64 bits
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _block(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(data)) + data


def build_model(
    pieces: Sequence[bytes],
    scores: Sequence[float],
    types: Sequence[int],
    *,
    model_type: int,
    byte_fallback: bool,
    charsmap: bytes,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
) -> bytes:
    """The serialised `ModelProto`. Exactly one of `types` must be 2 (unknown); the library refuses anything else."""
    lengths = [_varint(n) for n in range(max(map(len, pieces), default=0) + 24)]
    head, text, score = _varint(1 << 3 | _BYTES), _varint(1 << 3 | _BYTES), _varint(2 << 3 | _FLOAT)
    ends = {kind: _number(3, kind) for kind in set(types)}
    floats = struct.pack(f"<{len(scores)}f", *scores)
    message = bytearray()
    parts: list[bytes] = []
    for i, (piece, kind) in enumerate(zip(pieces, types, strict=True)):
        end = ends[kind]
        n = len(piece)
        inner = len(lengths[n]) + n + 6 + len(end)
        parts += (head, lengths[inner], text, lengths[n], piece, score, floats[4 * i : 4 * i + 4], end)
        if i % JOINED == 0:
            message += b"".join(parts)
            parts.clear()
    trainer = _number(3, model_type) + _number(35, byte_fallback)
    # The library looks the special tokens up by spelling; the ids only say which exist.
    trainer += _number(40, types.index(2)) + _number(41, -1) + _number(42, -1) + _number(43, -1)
    trainer += _block(45, pieces[types.index(2)])
    normalizer = _block(1, b"identity") + _block(2, charsmap) + _number(3, add_dummy_prefix)
    normalizer += _number(4, remove_extra_whitespaces) + _number(5, 1)
    parts += (_block(2, trainer), _block(3, normalizer))
    return bytes(message + b"".join(parts))

"""Every tensor type against the `gguf` package, bit for bit, and encoders by what comes back."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from phobos.gguf.grids import _CODEBOOKS, grid
from phobos.gguf.quants import TABLE, GGMLType

# Types the package lists without a decoder of its own; they have tests by hand below.
WITHOUT_REFEREE = {
    GGMLType.Q1_0,
    GGMLType.Q2_0,
    GGMLType.Q8_1,
    GGMLType.Q8_K,
    GGMLType.F64,
    GGMLType.I8,
    GGMLType.I16,
    GGMLType.I32,
    GGMLType.I64,
}
WITH_REFEREE = [kind for kind in GGMLType if kind not in WITHOUT_REFEREE]
# Where the half-precision scales lie in a block; IQ1_M's is spread out and stays random.
HALVES = {
    GGMLType.F16: (0,),
    GGMLType.Q4_0: (0,),
    GGMLType.Q4_1: (0, 2),
    GGMLType.Q5_0: (0,),
    GGMLType.Q5_1: (0, 2),
    GGMLType.Q8_0: (0,),
    GGMLType.Q2_K: (80, 82),
    GGMLType.Q3_K: (108,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
    GGMLType.TQ1_0: (52,),
    GGMLType.TQ2_0: (64,),
    **{kind: (0,) for kind in GGMLType if kind.name.startswith("IQ") and kind != GGMLType.IQ1_M},
}
EXTREME_HALVES = np.array([0, 0x8000, 1, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF], np.uint16)
# Worst error of a round trip over values of about one, as a share of the largest.
WORST_ERROR = {
    GGMLType.F32: 0,
    GGMLType.F64: 0,
    GGMLType.F16: 0.001,
    GGMLType.BF16: 0.005,
    GGMLType.Q8_0: 0.005,
    GGMLType.Q6_K: 0.035,
    GGMLType.Q5_0: 0.07,
    GGMLType.Q5_1: 0.04,
    GGMLType.Q5_K: 0.06,
    GGMLType.Q4_0: 0.13,
    GGMLType.Q4_1: 0.08,
    GGMLType.Q4_K: 0.1,
    GGMLType.IQ4_NL: 0.12,
    GGMLType.MXFP4: 0.26,
    GGMLType.Q3_K: 0.28,
    GGMLType.Q2_K: 0.4,
}


def random_blocks(kind: GGMLType, n_blocks: int, seed: int = 0) -> np.ndarray:
    """Random bytes [n_blocks, n_bytes] whose half-precision scales are finite, some of them extreme."""
    rng = np.random.default_rng(seed + int(kind))
    data = rng.integers(0, 256, (n_blocks, TABLE[kind].n_bytes), np.uint8)
    for at in HALVES.get(kind, ()):
        halves = rng.integers(0, 1 << 16, n_blocks, np.uint16)
        halves[::3] = rng.choice(EXTREME_HALVES, len(halves[::3]))
        halves[(halves & 0x7C00) == 0x7C00] &= 0xBFFF
        data[:, at : at + 2] = halves[:, None].view(np.uint8)
    return data


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return left.shape == right.shape and bool((left.view(np.uint32) == right.view(np.uint32)).all())


def test_table_knows_every_type_of_the_package_with_its_sizes() -> None:
    for kind in gguf.GGMLQuantizationType:
        row = TABLE[GGMLType(int(kind))]
        assert GGMLType(int(kind)).name == kind.name
        if kind != gguf.GGMLQuantizationType.Q8_1:  # the package still gives its old layout with float32 scales
            assert (row.block, row.n_bytes) == gguf.GGML_QUANT_SIZES[kind]
    assert set(TABLE) == set(GGMLType)
    assert GGMLType(42) == GGMLType.Q2_0  # newer than the package


@pytest.mark.parametrize("kind", WITH_REFEREE, ids=lambda kind: kind.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the referee's own overflows
def test_dequantize_gives_the_bits_of_the_package(kind: GGMLType) -> None:
    data = random_blocks(kind, 600)
    ours = TABLE[kind].dequantize(data)
    theirs = np.asarray(dequantize(data, gguf.GGMLQuantizationType(int(kind))), np.float32)
    assert ours.dtype == np.float32
    assert same_bits(ours, theirs)
    assert len(np.unique(ours)) > 10  # a decoder that gives nothing, compared with one that gives nothing


@pytest.mark.parametrize("kind", WITH_REFEREE, ids=lambda kind: kind.name)
def test_every_scale_code_decodes_alike(kind: GGMLType) -> None:
    """All 256 values of every byte of one block."""
    n_bytes = TABLE[kind].n_bytes
    data = np.tile(random_blocks(kind, 1, seed=7), (256 * n_bytes, 1))
    data[np.arange(256 * n_bytes), np.repeat(np.arange(n_bytes), 256)] = np.tile(
        np.arange(256, dtype=np.uint8), n_bytes
    )
    with np.errstate(all="ignore"):
        theirs = np.asarray(dequantize(data, gguf.GGMLQuantizationType(int(kind))), np.float32)
    ours = TABLE[kind].dequantize(data)
    alike = (ours.view(np.uint32) == theirs.view(np.uint32)) | (np.isnan(ours) & np.isnan(theirs))
    assert alike.all()


def test_dequantize_keeps_leading_axes_and_goes_through_pieces() -> None:
    kind = GGMLType.Q4_0
    data = random_blocks(kind, 3 * 5 * 400).reshape(3, 5, 400 * 18)
    whole = TABLE[kind].dequantize(data)
    assert whole.shape == (3, 5, 400 * 32)
    assert same_bits(whole[2, 4], TABLE[kind].dequantize(data[2, 4]))
    assert same_bits(whole[:, ::2], TABLE[kind].dequantize(data[:, ::2]))  # not contiguous
    assert TABLE[kind].dequantize(data[:0]).shape == (0, 5, 400 * 32)


def test_a_row_that_is_no_whole_number_of_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="Q4_K"):
        TABLE[GGMLType.Q4_K].dequantize(np.zeros(143, np.uint8))
    quantize_q4_k = TABLE[GGMLType.Q4_K].quantize
    assert quantize_q4_k is not None
    with pytest.raises(ValueError, match="Q4_K"):
        quantize_q4_k(np.zeros((2, 255), np.float32))


def test_types_without_a_referee() -> None:
    half = np.array([-0.5], np.float16).view(np.uint8)
    q1 = np.concatenate([half, np.full(16, 0b00000001, np.uint8)])
    assert TABLE[GGMLType.Q1_0].dequantize(q1).tolist() == [-0.5, *[0.5] * 7] * 16
    q2 = np.concatenate([half, np.full(16, 0b11100100, np.uint8)])
    assert TABLE[GGMLType.Q2_0].dequantize(q2).tolist() == [0.5, 0.0, -0.5, -1.0] * 16
    numbers = np.arange(-16, 16, dtype=np.int8)
    q8_1 = np.concatenate([half, half, numbers.view(np.uint8)])
    assert TABLE[GGMLType.Q8_1].dequantize(q8_1).tolist() == [-0.5 * int(n) for n in numbers]
    long = np.arange(256, dtype=np.uint8).view(np.int8)
    q8_k = np.concatenate([np.array([0.25], np.float32).view(np.uint8), long.view(np.uint8), np.full(32, 9, np.uint8)])
    assert TABLE[GGMLType.Q8_K].dequantize(q8_k).tolist() == [0.25 * int(n) for n in long]
    for kind, code in ((GGMLType.I8, "i1"), (GGMLType.I16, "<i2"), (GGMLType.I32, "<i4"), (GGMLType.I64, "<i8")):
        values = np.array([-128, -1, 0, 1, 127], code)
        assert TABLE[kind].dequantize(values.view(np.uint8)).tolist() == [-128, -1, 0, 1, 127]
    assert TABLE[GGMLType.F64].dequantize(np.array([0.1, -2.0]).view(np.uint8)).tolist() == [np.float32(0.1), -2.0]


def test_an_infinite_scale_gives_no_warning() -> None:
    data = np.zeros(18, np.uint8)
    data[:2] = np.array([np.inf], np.float16).view(np.uint8)
    data[2:] = 0x08
    values = TABLE[GGMLType.Q4_0].dequantize(data)
    assert np.isnan(values[0]) and values[16] == -np.inf


@pytest.mark.parametrize(
    "kind",
    [
        GGMLType.BF16,
        GGMLType.F16,
        GGMLType.Q4_0,
        GGMLType.Q4_1,
        GGMLType.Q5_0,
        GGMLType.Q5_1,
        GGMLType.Q8_0,
        GGMLType.MXFP4,
    ],
    ids=lambda kind: kind.name,
)
def test_quantize_gives_the_bytes_of_the_package(kind: GGMLType) -> None:
    rng = np.random.default_rng(int(kind))
    values = (rng.standard_normal((40, 256)) * 10.0 ** rng.integers(-6, 4, (40, 1))).astype(np.float32)
    values[3] = 0
    encode = TABLE[kind].quantize
    assert encode is not None
    theirs = np.asarray(quantize(values, gguf.GGMLQuantizationType(int(kind)))).view(np.uint8)
    assert (encode(values) == theirs).all()


@pytest.mark.parametrize("kind", WORST_ERROR, ids=lambda kind: kind.name)
def test_a_round_trip_stays_close(kind: GGMLType) -> None:
    values = np.random.default_rng(int(kind)).uniform(-1, 1, (64, 512)).astype(np.float32)
    values[0] = 0
    values[1] = 0.5
    values[2] = np.abs(values[2])
    values[3] = -np.abs(values[3])
    encode = TABLE[kind].quantize
    assert encode is not None
    packed = encode(values)
    assert packed.dtype == np.uint8 and packed.shape == (64, 512 // TABLE[kind].block * TABLE[kind].n_bytes)
    back = TABLE[kind].dequantize(packed)
    assert np.abs(back - values).max() <= WORST_ERROR[kind]
    assert (back[0] == 0).all()
    # Much closer on average than a type of one bit fewer would be.
    assert np.abs(back - values).mean() <= WORST_ERROR[kind] / 2


def test_quantized_integers_come_back() -> None:
    values = np.array([[-128.0, 127.0, 0.0]], np.float32)
    for kind in (GGMLType.I8, GGMLType.I16, GGMLType.I32, GGMLType.I64):
        encode = TABLE[kind].quantize
        assert encode is not None
        assert (TABLE[kind].dequantize(encode(values)) == values).all()


@pytest.mark.parametrize("name", _CODEBOOKS)
def test_codebooks_are_whole(name: str) -> None:
    book = _CODEBOOKS[name]
    points = grid(name)
    assert points.shape == (book.n_points, book.n_dims)
    assert set(np.unique(points)) == set(book.levels)
    assert len(np.unique(points, axis=0)) == book.n_points
    with pytest.raises(ValueError, match="read-only"):
        points[0, 0] = 1

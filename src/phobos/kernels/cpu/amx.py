"""Intel's matrix tiles: eight registers of up to 16 rows of 64 bytes, multiplied int8 by int8 into int32, exactly.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2 (LDTILECFG, TILELOADD, TDPBSUD,
TILESTORED). A thread configures the tiles before it uses them and releases them afterwards, so that the system need not
save them. Which tiles hold what is fixed here: `PRODUCT` by group, `ROWS`, `WEIGHTS` by group.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from phobos.kernels.cpu.access import store_i64, store_u8, store_u16
from phobos.kernels.cpu.simd import call_intrinsic, inlined

TILE_ROWS = 16
CONFIG_BYTES = 64
_I8, _I64 = ir.IntType(8), ir.IntType(64)
_PRODUCT, _ROWS, _WEIGHTS = (0, 1), 4, (6, 7)


def _make_tile_instruction(name: str, tiles: tuple[int, ...]):
    """An instruction on fixed tiles: of no memory, or of an address and the bytes from row to row."""
    in_memory = name in ("tileloadd64", "tilestored64")

    def emit(builder, args):
        operands = [_I8(tile) for tile in tiles]
        if in_memory:
            operands += [builder.inttoptr(args[0], _I8.as_pointer()), args[1]]
        call_intrinsic(builder, f"llvm.x86.{name}", ir.VoidType(), *operands)

    if in_memory:

        @intrinsic
        def instruction(typingctx, address, stride):
            def codegen(context, builder, signature, args):
                emit(builder, args)
                return context.get_dummy_value()

            return types.void(types.int64, types.int64), codegen

    else:

        @intrinsic
        def instruction(typingctx):
            def codegen(context, builder, signature, args):
                emit(builder, args)
                return context.get_dummy_value()

            return types.void(), codegen

    return instruction


clear_first, clear_second = (_make_tile_instruction("tilezero", (tile,)) for tile in _PRODUCT)
store_first, store_second = (_make_tile_instruction("tilestored64", (tile,)) for tile in _PRODUCT)
load_rows = _make_tile_instruction("tileloadd64", (_ROWS,))
load_first, load_second = (_make_tile_instruction("tileloadd64", (tile,)) for tile in _WEIGHTS)
multiply_first, multiply_second = (
    _make_tile_instruction("tdpbsud", (product, _ROWS, weights))
    for product, weights in zip(_PRODUCT, _WEIGHTS, strict=True)
)
release_tiles = _make_tile_instruction("tilerelease", ())


@intrinsic
def _load_config(typingctx, address):
    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], _I8.as_pointer())
        call_intrinsic(builder, "llvm.x86.ldtilecfg", ir.VoidType(), pointer)
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@inlined
def configure_tiles(config, n_rows, block):
    """Shape the tiles for `n_rows` rows by 16 outputs over `block` inputs; `config` is room for `CONFIG_BYTES`."""
    for word in range(8):
        store_i64(config + 8 * word, 0)
    store_u8(config, 1)
    for tile in (0, 1):
        store_u16(config + 16 + 2 * tile, 64)
        store_u8(config + 48 + tile, n_rows)
    store_u16(config + 16 + 2 * 4, block)
    store_u8(config + 48 + 4, n_rows)
    for tile in (6, 7):
        store_u16(config + 16 + 2 * tile, 64)
        store_u8(config + 48 + tile, block // 4)
    _load_config(config)

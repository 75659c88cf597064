"""The C entry of a kernel: reads its arguments out of a step record."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from phobos.kernels.cpu.layout import FIRST_ARGUMENT


def make_argument_loader(parameters: tuple[type, ...]):
    """An intrinsic `load(step) -> tuple` of int64 and float32 arguments."""
    kinds = [types.float32 if p is float else types.int64 for p in parameters]
    result = types.Tuple(kinds)

    @intrinsic
    def load(typingctx, step):
        def codegen(context, builder, signature, args):
            values = []
            for position, kind in enumerate(kinds):
                offset = ir.Constant(ir.IntType(64), 8 * (FIRST_ARGUMENT + position))
                llvm_type = ir.FloatType() if kind == types.float32 else ir.IntType(64)
                pointer = builder.inttoptr(builder.add(args[0], offset), llvm_type.as_pointer())
                values.append(builder.load(pointer, align=4))
            return context.make_tuple(builder, result, values)

        return result(types.int64), codegen

    return load

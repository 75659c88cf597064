"""What a loaded model is, as front ends show it."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence

from phobos.counters import ModelInfo
from phobos.gguf.reader import GGUF
from phobos.kernels.backend import Backend, cache_bound
from phobos.printable import printable
from phobos.program.steps import Attention, GatedDelta, Program, SelectiveScan, ShortConv

SHOWN_NAMES = 8  # tensors a warning names
logger = logging.getLogger("phobos.load")

# `general.file_type`, as the GGUF description numbers the mixtures that files are published in.
FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
}


def quantization_label(gguf: GGUF) -> str:
    """The mixture the file says it is (`Q4_K_M`); else the type that most bytes of its matrices have."""
    number = gguf.metadata.get("general.file_type")
    if isinstance(number, int) and number in FILE_TYPES:
        return FILE_TYPES[number]
    n_bytes: Counter[str] = Counter()
    for tensor in gguf.tensors.values():
        if len(tensor.shape) > 1:
            n_bytes[tensor.type.name] += tensor.n_bytes
    return n_bytes.most_common(1)[0][0] if n_bytes else "unknown"


def layer_kinds(program: Program) -> tuple[str, ...]:
    """What mixes the positions of each block; a convolution that leads into another recurrence counts as part of it."""
    kinds: list[str] = []
    for op in program.ops:
        match op:
            case Attention():
                kinds.append("window" if op.layer.window else "full")
            case ShortConv():
                kinds.append("convolution")
            case GatedDelta() | SelectiveScan():
                while kinds and kinds[-1] == "convolution":
                    kinds.pop()
                kinds.append("delta" if isinstance(op, GatedDelta) else "scan")
    return tuple(kinds)


def warn_of_widened(gguf: GGUF, names: Sequence[str]) -> None:
    """Say which tensors, if any, take more room than in the file, since their types have no packed form."""
    if not names:
        return
    kinds = ", ".join(sorted({gguf.tensors[name].type.name for name in names}))
    logger.warning(
        "no packed form for %s: held as F16, which takes more memory and time: %s",
        kinds,
        ", ".join(names[:SHOWN_NAMES]) + (f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""),
    )


def describe_model(gguf: GGUF, program: Program, backend: Backend) -> ModelInfo:
    """Facts of a model once it is loaded. The dialect is for the layer that knows chat templates to fill in."""
    name = gguf.metadata.get("general.name")
    held, kinds = backend.memory(), layer_kinds(program)
    return ModelInfo(
        name=printable(name if isinstance(name, str) and name.strip() else gguf.paths[0].stem),
        architecture=gguf.architecture,
        quantization=quantization_label(gguf),
        n_params=sum(math.prod(tensor.shape) for tensor in gguf.tensors.values()),
        n_ctx=backend.limits.n_ctx,
        n_layers=len(kinds),
        n_vocab=program.n_vocab,
        dialect="plain",
        weights_bytes=held["weights"],
        cache_bytes=cache_bound(backend),
        scratch_bytes=held["scratch"],
        n_ctx_train=program.n_ctx_train,
        layer_kinds=kinds,
    )

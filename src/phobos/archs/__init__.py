"""One file a model family; this table is all that knows them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from phobos.archs import (
    deepseek2,
    exaone4,
    gemma,
    gemma2,
    gemma3,
    gemma3n,
    gemma4,
    glm4,
    glm4moe,
    gpt2,
    gpt_oss,
    granite,
    hunyuan_dense,
    kimi_linear,
    lfm2,
    llama,
    mamba2,
    mimo2,
    minicpm,
    minicpm3,
    mistral3,
    olmo2,
    olmoe,
    phi3,
    qwen2,
    qwen2moe,
    qwen3next,
    seed_oss,
    smollm3,
    stablelm,
    starcoder2,
)
from phobos.errors import UnsupportedModelError
from phobos.gguf.reader import GGUF
from phobos.program.checks import check_program
from phobos.program.embedding import end_at_states, read_pooling
from phobos.program.steps import Program

BUILDERS: Mapping[str, Callable[[GGUF], Program]] = {
    "deepseek2": deepseek2.build,
    "ernie4_5": llama.build,
    "exaone4": exaone4.build,
    "gemma": gemma.build,
    "gemma2": gemma2.build,
    "gemma3": gemma3.build,
    "gemma3n": gemma3n.build,
    "gemma4": gemma4.build,
    "glm4": glm4.build,
    "glm4moe": glm4moe.build,
    "gpt2": gpt2.build,
    "gpt-oss": gpt_oss.build,
    "granite": granite.build,
    "granitehybrid": granite.build,
    "granitemoe": granite.build,
    "hunyuan-dense": hunyuan_dense.build,
    "kimi-linear": kimi_linear.build,
    "lfm2": lfm2.build,
    "lfm2moe": lfm2.build,
    "llama": llama.build_file,
    "mamba2": mamba2.build,
    "mimo2": mimo2.build,
    "minicpm": minicpm.build,
    "minicpm3": minicpm3.build,
    "mistral3": mistral3.build,
    "olmo2": olmo2.build,
    "olmoe": olmoe.build,
    "phi3": phi3.build,
    "qwen2": qwen2.build,
    "qwen2moe": qwen2moe.build,
    "qwen3": qwen2.build,
    "qwen35": qwen3next.build,
    "qwen35moe": qwen3next.build,
    "qwen3moe": qwen2moe.build,
    "qwen3next": qwen3next.build,
    "seed_oss": seed_oss.build,
    "smollm3": smollm3.build,
    "stablelm": stablelm.build,
    "starcoder2": starcoder2.build,
}

#: Tensors a program need not name: what rope is read from, an untied copy no model file means, and draft layers.
HARMLESS = re.compile(
    r"rope_(freqs|factors_long|factors_short)\.weight|blk\.\d+\.(attn_rot_embd|rope_freqs)\.weight"
    r"|blk\.\d+\.attn\.rotary_emb\.inv_freq|blk\.\d+\.nextn\..*"
)

#: Tensors that files of a family have in blocks which do not read them: here keys where another block's cache is read.
UNREAD = {"gemma3n": re.compile(r"blk\.\d+\.attn_(k|v|k_norm)\.weight")}


def _is_harmless(gguf: GGUF, name: str) -> bool:
    """Whether no step need use a tensor: by its name, or because its block only drafts tokens."""
    n_drafts = gguf.get_int(f"{gguf.architecture}.nextn_predict_layers", 0)
    block = re.match(r"blk\.(\d+)\.", name)
    if n_drafts > 0 and block:
        return int(block[1]) >= gguf.get_int(f"{gguf.architecture}.block_count") - n_drafts
    unread = UNREAD.get(gguf.architecture)
    return HARMLESS.fullmatch(name) is not None or (unread is not None and unread.fullmatch(name) is not None)


def _check_vocabulary(gguf: GGUF) -> None:
    """Every token has a row in the embedding; rows more than tokens are padding."""
    shape, key = gguf.tensors["token_embd.weight"].shape, "tokenizer.ggml.tokens"
    listed = gguf.metadata.preview(key, 0) if key in gguf.metadata else None
    if len(shape) != 2:
        raise UnsupportedModelError(f"tensor token_embd.weight has shape {shape} and is no matrix: fetch a sound copy")
    if listed is not None and listed[1] > shape[0]:
        raise UnsupportedModelError(
            f"the vocabulary has {listed[1]} tokens and the embedding rows for {shape[0]}: fetch a sound conversion of "
            "the model"
        )


def build_program(gguf: GGUF) -> Program:
    """The program of a file's model; `UnsupportedModelError` names what is missing, or what the file has and no step
    uses."""
    build = BUILDERS.get(gguf.architecture)
    if build is None:
        raise UnsupportedModelError(
            f"architecture {gguf.architecture!r} is not supported: Phobos runs {', '.join(sorted(BUILDERS))}"
        )
    if "token_embd.weight" not in gguf.tensors:
        raise UnsupportedModelError("the file has no tensor token_embd.weight: it holds a vocabulary, not a model")
    _check_vocabulary(gguf)
    pooling = read_pooling(gguf)
    program = build(gguf)
    check_program(program, gguf.tensors, gguf.architecture)
    used = set(program.weights())
    unknown = next((name for name in gguf.tensors if name not in used and not _is_harmless(gguf, name)), None)
    if unknown is not None:
        raise UnsupportedModelError(
            f"the file has a tensor {unknown}, which Phobos's {gguf.architecture} does not use: it is of a variant "
            "that is not supported"
        )
    return program if pooling is None else end_at_states(program, pooling)

"""What an architecture file makes of a model file: the program, and one sentence where it cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.gguf_writer import write_gguf
from models.tiny_models import N_VOCAB, RECIPES, Recipe, make_metadata, make_weights
from phobos.archs import build_program
from phobos.errors import FileError, UnsupportedModelError
from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import open_gguf
from phobos.program.steps import Attention, Glu, Program, RopeTable, RotateStore, SoftCap, reads_of, writes_of

F32 = GGMLType.F32


def build(folder: Path, metadata: dict, weights: dict) -> Program:
    path = write_gguf(folder / "m.gguf", metadata, {name: (F32, values) for name, values in weights.items()})
    with open_gguf(path) as gguf:
        return build_program(gguf)


def parts(name: str) -> tuple[Recipe, dict, dict]:
    recipe = RECIPES[name]
    return recipe, make_metadata(recipe), make_weights(recipe)


@pytest.mark.parametrize("name", RECIPES)
def test_every_weight_is_used_and_every_read_was_written(tmp_path: Path, name: str) -> None:
    recipe, metadata, weights = parts(name)
    program = build(tmp_path, metadata, weights)
    assert set(program.weights()) == set(weights) - {"rope_freqs.weight"}
    assert program.n_vocab == N_VOCAB
    assert len(program.layers) == recipe.n_layers
    written: set[str] = set()
    for op in program.ops:
        missing = {name for name in reads_of(op) - written if not name.startswith("cache")}
        assert not missing, f"{op} reads {missing} before anything wrote them"
        written |= writes_of(op)
    assert program.logits.name in written


def test_gemma3_alternates_windows(tmp_path: Path) -> None:
    _, metadata, weights = parts("gemma3")
    metadata["gemma3.final_logit_softcapping"] = 30.0
    program = build(tmp_path, metadata, weights)
    assert [layer.window for layer in program.layers] == [48, 48, 48, 48, 48, 0, 48]
    tables = {op.out.name: op.frequencies for op in program.ops if isinstance(op, RopeTable)}
    used = [op.table.name for op in program.ops if isinstance(op, RotateStore) and op.table]
    assert [tables[name][1] for name in used] == pytest.approx(
        [(1e6 if i == 5 else 1e4) ** (-2 / 128) for i in range(7)]
    )
    assert isinstance(program.ops[-1], SoftCap)
    assert {op.activation for op in program.ops if isinstance(op, Glu)} == {"gelu_tanh"}


def test_styles_and_scales(tmp_path: Path) -> None:
    for name, style in (("llama", "normal"), ("qwen2", "neox"), ("gemma3", "neox")):
        recipe, metadata, weights = parts(name)
        program = build(tmp_path, metadata, weights)
        assert {op.style for op in program.ops if isinstance(op, RotateStore)} == {style}
        scales = {op.scale for op in program.ops if isinstance(op, Attention)}
        assert scales == {recipe.k_dim**-0.5}


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    _, metadata, weights = parts("qwen2")
    del weights["blk.1.ffn_up.weight"]
    with pytest.raises(UnsupportedModelError, match=r"no tensor blk\.1\.ffn_up\.weight, which the qwen2"):
        build(tmp_path, metadata, weights)


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    _, metadata, weights = parts("llama")
    weights["blk.0.attn_k.weight"] = np.zeros((32, 256), np.float32)
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.attn_k\.weight has shape \(32, 256\) where \(64, 256\)"):
        build(tmp_path, metadata, weights)


def test_a_vocabulary_alone_is_no_model(tmp_path: Path) -> None:
    _, metadata, _ = parts("llama")
    with pytest.raises(UnsupportedModelError, match="a vocabulary, not a model"):
        build(tmp_path, metadata, {"output_norm.weight": np.ones(256, np.float32)})


def test_an_unknown_architecture_names_the_known(tmp_path: Path) -> None:
    _, metadata, weights = parts("llama")
    metadata["general.architecture"] = "mamba"
    with pytest.raises(UnsupportedModelError, match=r"'mamba' is not supported: Phobos runs .*llama.*qwen2"):
        build(tmp_path, metadata, weights)


def test_missing_and_wrong_metadata(tmp_path: Path) -> None:
    _, metadata, weights = parts("llama")
    without = {key: value for key, value in metadata.items() if key != "llama.attention.head_count"}
    with pytest.raises(FileError, match=r"llama\.attention\.head_count"):
        build(tmp_path, without, weights)
    with pytest.raises(FileError, match=r"llama\.block_count"):
        build(tmp_path, {**metadata, "llama.block_count": "two"}, weights)


@pytest.mark.parametrize("count", [0, np.zeros(0, np.int32), np.zeros(2, np.int32)])
def test_a_model_without_heads_is_refused(tmp_path: Path, count: object) -> None:
    _, metadata, weights = parts("llama")
    with pytest.raises(UnsupportedModelError, match=r"llama\.attention\.head_count is 0: a model without attention"):
        build(tmp_path, {**metadata, "llama.attention.head_count": count}, weights)


def test_an_unknown_rope_scaling_is_refused(tmp_path: Path) -> None:
    _, metadata, weights = parts("llama")
    with pytest.raises(UnsupportedModelError, match="rope scaling 'spiral'"):
        build(tmp_path, {**metadata, "llama.rope.scaling.type": "spiral"}, weights)

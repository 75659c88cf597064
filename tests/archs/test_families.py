"""Every family against llama.cpp's logits and greedy tokens, against the reference, and bit-equal to itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from golden import values
from models.family_models import FAMILIES, make_metadata, make_weights, write_family_model
from models.gguf_writer import write_gguf
from models.tiny_models import make_tokens
from one_op import join_batches, make_batch
from phobos.archs import build_program
from phobos.errors import UnsupportedModelError
from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import open_gguf
from phobos.kernels.backend import Backend, BackendLimits
from phobos.kernels.cpu.backend import CpuBackend
from phobos.kernels.model_info import layer_kinds
from phobos.kernels.reference.backend import ReferenceBackend
from phobos.program.steps import reads_of, writes_of

TOLERANCE = 1e-3
#: Relatives of families that ordinary runs cover: all of them run with `-m slow`.
RELATIVES = {"qwen35moe", "qwen3next", "qwen3next-fused", "lfm2moe", "granitehybrid-dense", "gemma4-moe", "gemma3n"}
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name in RELATIVES else []) for name in FAMILIES]
CLEAR_MARGIN = 0.05
N = values.N_FAMILY_TOKENS


def load(path: Path, kind: str, n_ctx: int = N + 32) -> Backend:
    with open_gguf(path) as gguf:
        program = build_program(gguf)
        limits = BackendLimits(n_ctx, 2, n_ctx, n_ctx, program.n_vocab)
        if kind == "reference":
            return ReferenceBackend(program, gguf, limits, lambda progress: None)
        return CpuBackend(program, gguf, limits, 2, lambda progress: None)


def run_once(path: Path, kind: str, tokens: np.ndarray) -> np.ndarray:
    backend = load(path, kind)
    try:
        return backend.run(make_batch(tokens)).copy()
    finally:
        backend.close()


def relative(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1))


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(values.FAMILIES) as found:
        return dict(found)


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_is_used_and_every_read_was_written(tmp_path: Path, name: str) -> None:
    with open_gguf(write_family_model(FAMILIES[name], tmp_path / "m.gguf")) as gguf:
        program = build_program(gguf)
    weights = {w for w in make_weights(FAMILIES[name]) if not w.startswith("rope_f")} - set(FAMILIES[name].unread)
    assert set(program.weights()) == weights
    written: set[str] = set()
    for op in program.ops:
        assert not {x for x in reads_of(op) - written if not x.startswith(("cache", "state"))}, op
        written |= writes_of(op)


@pytest.mark.parametrize("kind", [pytest.param("reference", marks=pytest.mark.slow), "cpu"])
@pytest.mark.parametrize("name", NAMES)
def test_float_weights(tmp_path: Path, golden: dict[str, np.ndarray], name: str, kind: str) -> None:
    """Logits of the prompt, and the greedy tokens after it wherever the referee was not in doubt."""
    path = write_family_model(FAMILIES[name], tmp_path / "m.gguf")
    greedy = golden[f"{name}.greedy"]
    tokens = np.concatenate([make_tokens(N), greedy[:-1]]).astype(np.int32)
    logits = run_once(path, kind, tokens)
    errors = relative(logits[list(values.FAMILY_POSITIONS)], golden[f"{name}.f32"])
    assert errors.max() < TOLERANCE, dict(zip(values.FAMILY_POSITIONS, errors.tolist(), strict=True))
    clear = golden[f"{name}.margins"] > CLEAR_MARGIN
    assert clear.any()
    assert np.array_equal(logits[N - 1 :].argmax(axis=1)[clear], greedy[clear])


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_mixed_weights(tmp_path: Path, golden: dict[str, np.ndarray], name: str) -> None:
    """No further from the float32 reference of the same quantized file than llama.cpp is, a little chance allowed."""
    path = write_family_model(FAMILIES[name], tmp_path / "m.gguf", FAMILIES[name].mixed)
    positions = list(values.FAMILY_POSITIONS)
    want = run_once(path, "reference", make_tokens(N))[positions]
    mine = relative(run_once(path, "cpu", make_tokens(N))[positions], want)
    theirs = relative(golden[f"{name}.mixed"], want)
    assert mine.mean() < 1.5 * theirs.mean() + TOLERANCE, (mine, theirs)


@pytest.mark.parametrize("name", NAMES)
def test_bit_equal(tmp_path: Path, name: str) -> None:
    """A prompt at once, in chunks beside another slot's rows, and after a copied prefix: the same bits."""
    tokens, other = make_tokens(130), make_tokens(130, seed=3)
    backend = load(write_family_model(FAMILIES[name], tmp_path / "m.gguf", FAMILIES[name].mixed), "cpu")
    try:
        plain = backend.run(make_batch(tokens)).copy()
        found, state = [], b""
        for first in range(0, len(tokens), 7):
            mine = make_batch(tokens[first : first + 7], first, slot=1)
            if (first // 7) % 2:
                at = 3 * (first // 14)
                batch = join_batches(make_batch(other[at : at + 3], at, slot=0), mine)
                found += list(backend.run(batch)[3:].copy())
            else:
                found += list(backend.run(mine).copy())
            state = backend.save_state(1) if first + 7 == 70 else state
        assert np.array_equal(np.array(found), plain)
        backend.copy_rows(1, 0, 70)
        if not backend.limits.can_cut:
            backend.restore_state(0, 70, state)
        rest = [backend.run(make_batch(tokens[i : i + 1], i)).copy()[0] for i in range(70, 100)]
        assert np.array_equal(np.array(rest), plain[70:100])
    finally:
        backend.close()


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("qwen35", ("delta", "full", "delta", "full")),
        ("kimi-linear", ("delta", "full", "delta", "full")),
        ("lfm2", ("convolution", "full", "convolution", "full")),
        ("mamba2", ("scan",) * 3),
    ],
)
def test_kinds_of_layers_are_told(tmp_path: Path, name: str, kinds: tuple[str, ...]) -> None:
    with open_gguf(write_family_model(FAMILIES[name], tmp_path / "m.gguf")) as gguf:
        assert layer_kinds(build_program(gguf)) == kinds


def test_recurrent_heads_that_do_not_fit_are_told(tmp_path: Path) -> None:
    family = FAMILIES["mamba2"]
    weights = {name: (GGMLType.F32, values) for name, values in make_weights(family).items()}
    for key, value in (("state_size", 40), ("time_step_rank", 7), ("conv_kernel", 1)):
        metadata = {**make_metadata(family), f"mamba2.ssm.{key}": value}
        with (
            open_gguf(write_gguf(tmp_path / "m.gguf", metadata, weights)) as gguf,
            pytest.raises(UnsupportedModelError, match=r"this mamba2 file has [78] heads in 512 values"),
        ):
            build_program(gguf)


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    family = FAMILIES["qwen3"]
    weights = {**make_weights(family), "blk.1.attn_gate.weight": np.ones((4, 256), np.float32)}
    path = write_gguf(tmp_path / "m.gguf", make_metadata(family), {k: (GGMLType.F32, v) for k, v in weights.items()})
    with (
        open_gguf(path) as gguf,
        pytest.raises(UnsupportedModelError, match=r"tensor blk\.1\.attn_gate\.weight, which"),
    ):
        build_program(gguf)


def test_draft_blocks_are_left_out(tmp_path: Path) -> None:
    """GLM-4.5's last block only guesses ahead: no step uses it, and its tensors are no error."""
    family = FAMILIES["glm4moe"]
    metadata = {**make_metadata(family), "glm4moe.block_count": 4, "glm4moe.nextn_predict_layers": 1}
    weights = {**make_weights(family), "blk.3.attn_q.weight": np.ones((4, 256), np.float32)}
    path = write_gguf(tmp_path / "m.gguf", metadata, {k: (GGMLType.F32, v) for k, v in weights.items()})
    with open_gguf(path) as gguf:
        assert len(build_program(gguf).layers) == family.n_layers

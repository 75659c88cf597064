"""What `scripts/measure/count_passes.py` counts: a decode pass of the 1.5B's shapes moves little beside the weights."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from models.gguf_writer import random_blocks, write_gguf
from one_op import random
from phobos.gguf.quants import GGMLType

SCRIPTS = Path(__file__).parents[2] / "scripts" / "measure"
N_EMBD, N_FF, N_VOCAB = 1536, 8960, 512
PRODUCTS = ("matmul", "joined", "rotated", "gated", "normed")  # kernels that read weights of matrices
LEAST = 0.85  # of the bandwidth goes to the weights, if kernels move what is counted and nothing else takes time


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("count_passes", SCRIPTS / "count_passes.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "count_passes", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """One layer of a Qwen2 of the 1.5B's widths, in Q4_K and Q6_K."""
    q4, q6, f32 = GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.F32
    shapes = {
        "attn_q": (N_EMBD, N_EMBD), "attn_k": (256, N_EMBD), "attn_v": (256, N_EMBD), "attn_output": (N_EMBD, N_EMBD),
        "ffn_gate": (N_FF, N_EMBD), "ffn_up": (N_FF, N_EMBD), "ffn_down": (N_EMBD, N_FF),
    }  # fmt: skip
    tensors = {f"blk.0.{name}.weight": (q4, random_blocks(q4, *shape, 1)) for name, shape in shapes.items()}
    for name in ("attn_q", "attn_k", "attn_v"):
        tensors[f"blk.0.{name}.bias"] = (f32, random(2, shapes[name][0]))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        tensors[f"{name}.weight"] = (f32, random(3, N_EMBD))
    tensors["token_embd.weight"] = (q4, random_blocks(q4, N_VOCAB, N_EMBD, 4))
    tensors["output.weight"] = (q6, random_blocks(q6, N_VOCAB, N_EMBD, 5))
    metadata = {
        "general.architecture": "qwen2", "qwen2.block_count": 1, "qwen2.context_length": 4096,
        "qwen2.embedding_length": N_EMBD, "qwen2.feed_forward_length": N_FF, "qwen2.attention.head_count": 12,
        "qwen2.attention.head_count_kv": 2, "qwen2.attention.layer_norm_rms_epsilon": 1e-6,
    }  # fmt: skip
    return write_gguf(tmp_path / "wide.gguf", metadata, tensors)


def test_a_decode_pass_is_the_weights(counting: ModuleType, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert counting.main([str(path)]) == 0
    out = capsys.readouterr().out
    decode, prompt = out.split("**One prompt pass")
    totals = [float(part.split("| all |")[1].split("|")[1]) for part in (decode, prompt)]
    rows = [line.split("|") for line in decode.splitlines() if line.startswith("| `")]
    assert sum(float(row[3]) for row in rows) == pytest.approx(totals[0], abs=0.1)
    assert totals[0] < totals[1], "512 rows move more than one"
    file_mb = path.stat().st_size / 1e6
    share = float(out.split(" MB, ")[1].split("%")[0]) / 100
    assert share >= LEAST and share * totals[0] < file_mb
    products = sum(float(row[3]) for row in rows if row[1].strip(" `").startswith(PRODUCTS))
    assert products / totals[0] >= LEAST


def test_the_roofs_bound_a_kernel(counting: ModuleType) -> None:
    """By bytes or by operations, whichever takes longer; products on tensor cores have a rate of their own."""
    count = counting.Count(1, 1000, 10)
    assert counting.seconds(count, 100.0, 10.0, 1.0) == 10.0
    count.operations = 200
    assert counting.seconds(count, 100.0, 10.0, 1.0) == 20.0
    count.is_tiled = True
    assert counting.seconds(count, 100.0, 10.0, 1.0) == 200.0

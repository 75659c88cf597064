"""Measure made-up mixtures of experts: decoding beside the machine's memory limit, prompts beside llama.cpp.

    python scripts/measure/mixtures.py 8 128 --against llama.cpp

Writes files of about 2 GB of random Q4_K weights to a temporary folder (`--folder` names another place for it) and
deletes them: 8 experts with 2 used (`llama`, as Mixtral), 128 with 8 used (`qwen3moe`). A token needs the bytes of
the experts it uses and of all else but the embedding; what that makes a second is told as a share of the limit.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from phobos.archs import build_program
from phobos.bench.measure import SEED, Subject, measure
from phobos.bench.peer import open_peer
from phobos.bench.runs import plan_runs
from phobos.gguf.quants import TABLE, GGMLType
from phobos.gguf.reader import open_gguf
from phobos.kernels.cpu.limits import measure_limits
from phobos.kernels.placing.opening import open_backend
from phobos.settings import EngineSettings

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from models.gguf_writer import header_bytes, key_bytes, tensor_bytes
from models.tiny_models import N_VOCAB, make_vocabulary

ALIGNMENT = 32
F32, Q4_K = GGMLType.F32, GGMLType.Q4_K


@dataclass(frozen=True)
class Mixture:
    """The shape of a made-up model."""

    architecture: str
    n_experts: int
    n_used: int
    n_layers: int
    n_ff: int
    n_embd: int = 2048
    n_heads: int = 16
    n_kv_heads: int = 4
    head_dim: int = 128

    def tensors(self) -> dict[str, tuple[GGMLType, tuple[int, ...]]]:
        """Types and shapes of all tensors."""
        e, q, kv = self.n_embd, self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        found: dict[str, tuple[GGMLType, tuple[int, ...]]] = {
            "token_embd.weight": (Q4_K, (N_VOCAB, e)),
            "output_norm.weight": (F32, (e,)),
            "output.weight": (Q4_K, (N_VOCAB, e)),
        }
        for i in range(self.n_layers):
            block: dict[str, tuple[GGMLType, tuple[int, ...]]] = {
                "attn_norm": (F32, (e,)),
                "attn_q": (Q4_K, (q, e)),
                "attn_k": (Q4_K, (kv, e)),
                "attn_v": (Q4_K, (kv, e)),
                "attn_output": (Q4_K, (e, q)),
                "ffn_norm": (F32, (e,)),
                "ffn_gate_inp": (F32, (self.n_experts, e)),
                "ffn_gate_exps": (Q4_K, (self.n_experts, self.n_ff, e)),
                "ffn_up_exps": (Q4_K, (self.n_experts, self.n_ff, e)),
                "ffn_down_exps": (Q4_K, (self.n_experts, e, self.n_ff)),
            }
            if self.architecture == "qwen3moe":
                block |= {f"attn_{part}_norm": (F32, (self.head_dim,)) for part in "qk"}
            found |= {f"blk.{i}.{name}.weight": value for name, value in block.items()}
        return found

    def metadata(self) -> dict[str, Any]:
        """All keys."""
        own = {
            "context_length": 4096,
            "embedding_length": self.n_embd,
            "block_count": self.n_layers,
            "feed_forward_length": self.n_ff,
            "expert_feed_forward_length": self.n_ff,
            "expert_count": self.n_experts,
            "expert_used_count": self.n_used,
            "attention.head_count": self.n_heads,
            "attention.head_count_kv": self.n_kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": self.head_dim,
        }
        keys = {f"{self.architecture}.{key}": value for key, value in own.items()}
        name = f"made up: {self.n_experts} experts, {self.n_used} used"
        return {"general.architecture": self.architecture, "general.name": name, **keys, **make_vocabulary()}

    def bytes_per_token(self) -> int:
        """Of the weights a token needs, in the file's own packing."""
        share = self.n_used / self.n_experts
        sizes = {name: n_bytes(kind, shape) for name, (kind, shape) in self.tensors().items()}
        del sizes["token_embd.weight"]
        return round(sum(size * (share if "_exps" in name else 1) for name, size in sizes.items()))


MIXTURES = {8: Mixture("llama", 8, 2, 12, 5632), 128: Mixture("qwen3moe", 128, 8, 6, 768)}


def n_bytes(kind: GGMLType, shape: tuple[int, ...]) -> int:
    """Bytes of a packed tensor."""
    return math.prod(shape) // TABLE[kind].block * TABLE[kind].n_bytes


def random_bytes(draw: np.random.Generator, kind: GGMLType, shape: tuple[int, ...]) -> bytes:
    """Weights about as large as trained ones: norms are 1, codes are random and scales are alike."""
    if kind == F32:
        values = np.ones(shape) if len(shape) == 1 else draw.standard_normal(shape) / math.sqrt(shape[-1])
        return values.astype(np.float32).tobytes()
    blocks = draw.integers(0, 256, (n_bytes(kind, shape) // TABLE[kind].n_bytes, TABLE[kind].n_bytes), dtype=np.uint8)
    blocks[:, :4] = np.array([1e-4, 7.5e-4], "<f2").view(np.uint8)
    return blocks.tobytes()


def write_mixture(mixture: Mixture, path: Path) -> Path:
    """The file, tensor by tensor."""
    tensors, keys, draw = mixture.tensors(), mixture.metadata(), np.random.default_rng(SEED)
    head, offset = header_bytes(len(tensors), len(keys)), 0
    head += b"".join(key_bytes(key, value) for key, value in keys.items())
    for name, (kind, shape) in tensors.items():
        head += tensor_bytes(name, shape[::-1], kind, offset)
        offset += -(-n_bytes(kind, shape) // ALIGNMENT) * ALIGNMENT
    with path.open("wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT))
        for kind, shape in tensors.values():
            data = random_bytes(draw, kind, shape)
            file.write(data + bytes(-len(data) % ALIGNMENT))
    return path


def report(mixture: Mixture, path: Path, against: str | None, n_threads: int | None, repeats: int) -> None:
    """Measure one file and print its lines."""
    runs = plan_runs(512, 64, [1], [0])
    settings = EngineSettings(path, n_threads=n_threads, n_ctx=1024, n_slots=1)
    with open_gguf(path) as gguf:
        backend, info = open_backend(build_program(gguf), gguf, settings, lambda progress: None)
    try:
        threads = backend.describe().n_threads
        limits, needed = measure_limits(threads), mixture.bytes_per_token()
        with open_peer(against, settings, threads) as time_peer:
            results = measure(Subject(backend, SEED).time, time_peer, runs, repeats, needed)
    finally:
        backend.close()
    print(f"{info.name}: {path.stat().st_size / 1e9:.2f} GB, {needed / 1e6:.0f} MB a token, {threads} threads")
    for result in results:
        line = f"  {result.run}: {result.median:.1f} tok/s ({result.low:.1f}-{result.high:.1f})"
        if result.weights_gbs:
            line += f", {result.weights_gbs:.1f} GB/s, {result.weights_gbs / limits.read_gbs:.0%} of the limit"
        if result.peer_median and result.ratio:
            line += f"; llama.cpp {result.peer_median:.1f}, ratio {result.ratio:.2f}"
        print(line, flush=True)


def main() -> None:
    """The mixtures named, or both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("n_experts", nargs="*", type=int, default=list(MIXTURES), help="8, 128 or both")
    parser.add_argument("--against", help="llama.cpp, where llama-cpp-python is installed")
    parser.add_argument("--folder", help="where to write, instead of the system's temporary folder")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    for n in given.n_experts:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            path = write_mixture(MIXTURES[n], Path(folder) / "mixture.gguf")
            report(MIXTURES[n], path, given.against, given.threads, given.repeats)


if __name__ == "__main__":
    main()

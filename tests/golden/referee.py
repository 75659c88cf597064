"""llama.cpp as the referee: the only file here that needs `llama_cpp`, run by an interpreter that has it.

Reads one job as JSON on standard input and writes one `.npz`. Fields of a job, all but `model` and `out` optional:
`texts` to tokenize (result `tokens_0`, `tokens_1`, …), `tokens` to run from an empty cache, `positions` whose logits
are wanted (result `logits` [n, n_vocab]), `n_greedy` tokens to go on with after the last of them (result `greedy`, and
`margins`, by how much the best logit led at each), `exact` for a float32 cache and no flash attention, `n_threads`,
`embed`, lists of tokens whose states are pooled as `pooling` says (llama.cpp's number; result `embeddings`).
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np

QUIET = llama.llama_log_callback(lambda level, text, data: None)
GGML_TYPE_F32 = 0
CHUNK = 512


class Referee:
    """One loaded model with an empty cache."""

    def __init__(self, path: str, *, n_ctx: int, exact: bool, n_threads: int, pooling: int | None = None) -> None:
        llama.llama_log_set(QUIET, None)
        llama.llama_backend_init()
        loading = llama.llama_model_default_params()
        loading.use_extra_bufts = False  # AMX kernels die where a virtual machine shows AMX but does not allow it
        self.model = llama.llama_model_load_from_file(path.encode(), loading)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        settings = llama.llama_context_default_params()
        settings.n_ctx = n_ctx
        settings.n_batch = settings.n_ubatch = CHUNK
        settings.n_threads = settings.n_threads_batch = n_threads
        settings.flash_attn_type = 0 if exact else 1
        if pooling is not None:
            settings.embeddings, settings.pooling_type = True, pooling
        if exact:
            settings.type_k = settings.type_v = GGML_TYPE_F32
        self.context = llama.llama_init_from_model(self.model, settings)
        if not self.context:
            raise SystemExit(f"llama.cpp cannot make a context for {path}")
        self.vocabulary = llama.llama_model_get_vocab(self.model)
        self.n_vocab = llama.llama_vocab_n_tokens(self.vocabulary)

    def tokenize(self, text: str) -> np.ndarray:
        """Tokens of plain text, BOS first where the file says so."""
        data = text.encode()
        space = (ctypes.c_int32 * (len(data) + 16))()
        n = llama.llama_tokenize(self.vocabulary, data, len(data), space, len(space), True, False)
        return np.array(space[:n], np.int32)

    def run(self, tokens: np.ndarray, first_position: int, wanted: set[int]) -> dict[int, np.ndarray]:
        """Decode a chunk; logits by position."""
        batch = llama.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = int(token)
            batch.pos[i] = first_position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = first_position + i in wanted
        if llama.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama.cpp failed to decode")
        found = {}
        for i in range(len(tokens)):
            if batch.logits[i]:
                row = llama.llama_get_logits_ith(self.context, i)
                found[first_position + i] = np.ctypeslib.as_array(row, (self.n_vocab,)).copy()
        llama.llama_batch_free(batch)
        return found

    def embed(self, tokens: list[int]) -> np.ndarray:
        """The pooled states of a text, as they are."""
        batch = llama.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, True
            batch.seq_id[i][0] = 0
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)
        if llama.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama.cpp failed to decode")
        llama.llama_batch_free(batch)
        row = llama.llama_get_embeddings_seq(self.context, 0)
        return np.ctypeslib.as_array(row, (llama.llama_model_n_embd(self.model),)).copy()


def run_job(job: dict[str, Any]) -> dict[str, np.ndarray]:
    """The arrays a job asks for."""
    tokens = np.array(job.get("tokens", []), np.int32)
    n_greedy = int(job.get("n_greedy", 0))
    referee = Referee(
        job["model"],
        n_ctx=max(256, len(tokens) + n_greedy),
        exact=bool(job.get("exact")),
        n_threads=int(job.get("n_threads", 2)),
        pooling=job.get("pooling"),
    )
    if job.get("embed"):
        return {
            "embeddings": np.stack([referee.embed(tokens) for tokens in job["embed"]]),
            **{f"tokens_{i}": referee.tokenize(text) for i, text in enumerate(job.get("texts", []))},
        }
    result = {f"tokens_{i}": referee.tokenize(text) for i, text in enumerate(job.get("texts", []))}
    wanted = set(job.get("positions", [])) | {len(tokens) - 1}
    logits: dict[int, np.ndarray] = {}
    for start in range(0, len(tokens), CHUNK):
        logits |= referee.run(tokens[start : start + CHUNK], start, wanted)
    if job.get("positions"):
        result["logits"] = np.stack([logits[position] for position in job["positions"]])
    greedy: list[int] = []
    margins: list[float] = []
    while len(greedy) < n_greedy:
        position = len(tokens) + len(greedy)
        second, best = np.sort(logits[position - 1])[-2:]
        margins.append(float(best - second))
        greedy.append(int(logits[position - 1].argmax()))
        logits = referee.run(np.array(greedy[-1:], np.int32), position, {position})
    result["greedy"], result["margins"] = np.array(greedy, np.int32), np.array(margins, np.float32)
    return result


if __name__ == "__main__":
    given = json.load(sys.stdin)
    np.savez(given["out"], **run_job(given))

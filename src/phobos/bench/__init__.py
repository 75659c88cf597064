"""`phobos-cli bench`: prompt (pp) and decode (tg) speed of a model, in the engine's own batches.

A row of the table is one kind of run: `pp512` computes 512 prompt tokens in one pass, `tg128` 128 tokens one by one,
`tg128 x8` in eight slots together; `@ d4096` says what the slots held before. Beside the tokens a second stand the
bytes of weights read a second, and their share of what the machine can read, measured in the same run. With
`--against llama.cpp` the peer (llama-cpp-python, if it is installed) does the same runs on the same file, in turn.
"""

from phobos.bench.measure import run
from phobos.bench.tensor_types import run_types

__all__ = ["run", "run_types"]

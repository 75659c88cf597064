"""Builds a checked `Program`: shapes and tensor names are verified as each op is added.

A `ProgramBuilder` is used by one `archs/*.py` at a time and owns the list it grows. A missing tensor or a wrong shape
is an `UnsupportedModelError` that names it.
"""

from __future__ import annotations

from phobos.errors import UnsupportedModelError
from phobos.gguf.reader import GGUF
from phobos.program.steps import (
    Activate,
    Activation,
    Add,
    Buffer,
    CacheLayer,
    Embed,
    GateActivation,
    Glu,
    LayerNorm,
    MatMul,
    Op,
    Program,
    RmsNorm,
    RopeTable,
    SoftCap,
    StateLayer,
)

ROW_UNIT = 16  # where a fused matrix may be cut


class ProgramBuilder:
    """Grows a program op by op. `gguf` gives tensor shapes and types; nothing of the weights is read."""

    def __init__(self, gguf: GGUF) -> None:
        self.gguf = gguf
        self._ops: list[Op] = []
        self._buffers: dict[str, Buffer] = {}
        self._layers: list[CacheLayer] = []
        self._states: list[StateLayer] = []

    # Buffers, weights and cache layers

    def buffer(self, name: str, width: int, *, per_output: bool = False) -> Buffer:
        """The buffer of that name, made at first use; a second use must agree."""
        wanted = Buffer(name, width, per_output)
        have = self._buffers.setdefault(name, wanted)
        if have != wanted:
            raise UnsupportedModelError(
                f"blocks of this file need {name} of {have.width} and of {wanted.width} values: this variant of "
                f"{self.gguf.architecture} is not supported"
            )
        return have

    def has(self, name: str) -> bool:
        """Whether the file holds a tensor of that name."""
        return name in self.gguf.tensors

    def weight(self, name: str, *shape: int) -> str:
        """The name, once the file is known to hold it with that shape."""
        info = self.gguf.tensors.get(name)
        if info is None:
            raise self._missing(name)
        if tuple(info.shape) != shape:
            raise UnsupportedModelError(
                f"tensor {name} has shape {tuple(info.shape)} where {shape} is expected: "
                f"this variant of {self.gguf.architecture} is not supported"
            )
        return name

    def _missing(self, name: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"the file has no tensor {name}, which the {self.gguf.architecture} architecture needs: "
            "the file is incomplete or of a variant Phobos does not know"
        )

    def rows_of(self, name: str) -> int:
        """The length of a tensor's slowest axis, where the file says by it how large something is."""
        info = self.gguf.tensors.get(name)
        if info is None:
            raise self._missing(name)
        return info.shape[0] if info.shape else 1

    def flat_weight(self, name: str, *shape: int) -> str:
        """Like `weight`; axes of length 1, which files write or leave out, do not count."""
        info = self.gguf.tensors.get(name)
        if info is not None and [n for n in info.shape if n != 1] == [n for n in shape if n != 1]:
            return name
        return self.weight(name, *shape)

    def optional(self, name: str, *shape: int) -> str | None:
        """Like `weight`, but None where the file has no such tensor."""
        return self.weight(name, *shape) if self.has(name) else None

    def cache_layer(self, n_kv_heads: int, k_dim: int, v_dim: int, window: int = 0) -> CacheLayer:
        """One more layer in the cache."""
        layer = CacheLayer(len(self._layers), n_kv_heads, k_dim, v_dim, window)
        self._layers.append(layer)
        return layer

    def state_layer(self, n_values: int) -> StateLayer:
        """One more state of fixed size."""
        state = StateLayer(len(self._states), n_values)
        self._states.append(state)
        return state

    # Ops

    def add_rows(
        self, out: str, x: Buffer, residual: Buffer | None, *, scale: float = 1.0, weight: str | None = None
    ) -> Buffer:
        """out = (x + residual) * scale * weight, which has one value or one for each column."""
        buffer = self.buffer(out, x.width, per_output=x.per_output)
        if weight is not None:
            is_one = weight in self.gguf.tensors and self.gguf.tensors[weight].shape == (1,)
            self.weight(weight, 1 if is_one else x.width)
        self.add(Add(buffer, x, residual, scale, weight))
        return buffer

    def add(self, op: Op) -> None:
        """Append an op."""
        self._ops.append(op)

    def embed(self, out: str, weight: str, n_vocab: int, width: int, scale: float = 1.0) -> Buffer:
        """out = the rows of the embedding matrix [n_vocab, width] for the batch's tokens, times scale."""
        buffer = self.buffer(out, width)
        self.add(Embed(buffer, self.weight(weight, n_vocab, width), scale))
        return buffer

    def rope_table(self, out: str, frequencies: tuple[float, ...], magnitude: float = 1.0) -> Buffer:
        """Cosines and sines of every row's position."""
        buffer = self.buffer(out, 2 * len(frequencies))
        self.add(RopeTable(buffer, frequencies, magnitude))
        return buffer

    def norm(
        self, out: str, x: Buffer, weight: str, eps: float, *, residual: Buffer | None = None, outputs: bool = False
    ) -> Buffer:
        """RMS norm; `outputs` keeps only the rows whose logits are wanted. Not in place: threads that share a row all
        sum the whole of it."""
        buffer = self.buffer(out, x.width, per_output=outputs or x.per_output)
        if buffer == x:
            raise ValueError(f"the norm of buffer {out} cannot be written to itself")
        self.add(RmsNorm(buffer, x, self.weight(weight, x.width), eps, residual))
        return buffer

    def layer_norm(self, out: str, x: Buffer, name: str, eps: float, *, outputs: bool = False) -> Buffer:
        """Layer norm by the tensors `name`.weight and, where there is one, `name`.bias."""
        buffer = self.buffer(out, x.width, per_output=outputs or x.per_output)
        bias = self.optional(f"{name}.bias", x.width)
        self.add(LayerNorm(buffer, x, self.weight(f"{name}.weight", x.width), bias, eps))
        return buffer

    def matmul(
        self,
        out: str,
        x: Buffer,
        weight: str,
        n_out: int,
        *,
        bias: str | None = None,
        residual: Buffer | None = None,
        scale: float = 1.0,
        part: tuple[int, int] | None = None,
    ) -> Buffer:
        """out = x @ weight.T (+ bias) (* scale) (+ residual). `part`: (first row, rows in all) of a fused matrix."""
        buffer = self.buffer(out, n_out, per_output=x.per_output)
        first_row, n_rows = part if part is not None else (0, n_out)
        if first_row % ROW_UNIT:
            raise UnsupportedModelError(f"tensor {weight} is fused at row {first_row}, no multiple of {ROW_UNIT}")
        name = self.weight(weight, n_rows, x.width)
        bias_name = self.weight(bias, n_rows) if bias is not None else None
        self.add(MatMul(buffer, x, name, bias_name, residual, scale, first_row))
        return buffer

    def vector_matmul(self, out: str, x: Buffer, weight: str) -> Buffer:
        """One value a row: x times a matrix of one row, stored as [1, width] or [width]."""
        is_vector = weight in self.gguf.tensors and len(self.gguf.tensors[weight].shape) == 1
        shape = (x.width,) if is_vector else (1, x.width)
        buffer = self.buffer(out, 1, per_output=x.per_output)
        self.add(MatMul(buffer, x, self.weight(weight, *shape)))
        return buffer

    def glu(self, out: str, gate: Buffer, up: Buffer, activation: GateActivation) -> Buffer:
        """out = activation(gate) * up."""
        buffer = self.buffer(out, gate.width, per_output=gate.per_output)
        self.add(Glu(buffer, gate, up, activation))
        return buffer

    def activate(self, out: str, x: Buffer, activation: Activation) -> Buffer:
        """out = activation(x)."""
        buffer = self.buffer(out, x.width, per_output=x.per_output)
        self.add(Activate(buffer, x, activation))
        return buffer

    def tanh(self, x: Buffer) -> Buffer:
        """x = tanh(x), in place."""
        self.add(SoftCap(x, 1.0))
        return x

    # The end

    def finish(self, logits: Buffer, n_ctx_train: int, *, soft_cap: float = 0.0) -> Program:
        """The program."""
        if soft_cap > 0:
            self.add(SoftCap(logits, soft_cap))
        return Program(
            ops=tuple(self._ops),
            buffers=tuple(self._buffers.values()),
            layers=tuple(self._layers),
            logits=logits,
            n_vocab=logits.width,
            n_ctx_train=n_ctx_train,
            states=tuple(self._states),
        )

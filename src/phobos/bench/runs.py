"""What is measured: kinds of runs, and which of them a command asks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """One kind of run: `n_prompt` tokens in a pass, or `n_generate` passes of `n_rows`, after `depth` tokens a slot."""

    n_prompt: int
    n_generate: int
    n_rows: int
    depth: int

    @property
    def name(self) -> str:
        """As llama-bench names it."""
        text = f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_generate}"
        text += f" x{self.n_rows}" if self.n_rows > 1 else ""
        return text + (f" @ d{self.depth}" if self.depth else "")

    @property
    def n_tokens(self) -> int:
        """Tokens the timed part computes."""
        return self.n_prompt or self.n_generate * self.n_rows


def plan_runs(n_prompt: int, n_generate: int, rows: list[int], depths: list[int]) -> list[Run]:
    """Every depth's prompt run and decode runs."""
    runs = []
    for depth in depths:
        runs += [Run(n_prompt, 0, 1, depth)] if n_prompt else []
        runs += [Run(0, n_generate, n, depth) for n in rows] if n_generate else []
    return runs

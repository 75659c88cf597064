"""Write llama.cpp's values of the tiny families to `families.npz`; names on the command line make those anew and keep
the rest. `make referee` runs this.

Of each family: `NAME.f32` and `NAME.mixed`, logits [position, token] with float32 and with mixed weights, and
`NAME.greedy` with `NAME.margins`, the tokens that follow with float32 weights and by how much each led.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from golden import values
from models.family_models import FAMILIES, write_family_model
from models.tiny_models import make_tokens


def make_family(name: str, folder: Path) -> dict[str, np.ndarray]:
    """All arrays of one family."""
    tokens = make_tokens(values.N_FAMILY_TOKENS).tolist()
    job = {"tokens": tokens, "positions": values.FAMILY_POSITIONS, "exact": True}
    path = write_family_model(FAMILIES[name], folder / "plain.gguf")
    plain = values.ask_referee(path, n_greedy=values.N_FAMILY_GREEDY, **job)
    mixed = values.ask_referee(write_family_model(FAMILIES[name], folder / "mixed.gguf", FAMILIES[name].mixed), **job)
    return {
        f"{name}.f32": plain["logits"],
        f"{name}.mixed": mixed["logits"],
        f"{name}.greedy": plain["greedy"],
        f"{name}.margins": plain["margins"],
    }


def main() -> None:
    """All families, or those named."""
    made: dict[str, np.ndarray] = {}
    wanted = sys.argv[1:] or list(FAMILIES)
    if values.FAMILIES.exists():
        with np.load(values.FAMILIES) as found:
            made = {key: found[key] for key in found if key.partition(".")[0] in FAMILIES}
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            try:
                made |= make_family(name, Path(folder))
            except RuntimeError as error:
                print(f"{name}: {error}", flush=True)
            else:
                print(name, flush=True)
    np.savez_compressed(values.FAMILIES, **made)


if __name__ == "__main__":
    main()

"""MODEL: what was loaded."""

from __future__ import annotations

from textual.content import Content

from phobos.tui.format import count_text, whole_text
from phobos.tui.lines import Lines
from phobos.tui.panels.panel import Panel, pair
from phobos.tui.rates import Moment
from phobos.tui.theme import Palette


class ModelPanel(Panel):
    """Name first, then rows in order of interest; a low panel puts several facts on a row."""

    TITLE = "MODEL"

    def draw(self, moment: Moment, width: int, height: int, palette: Palette) -> Lines:
        model = moment.snapshot.model
        if model is None:
            return [Content.styled("no model loaded", palette.dim)]
        name = Content.styled(model.name, f"bold {palette.text}")
        if height < 6:
            facts = [
                f"{model.architecture} · {model.quantization} · {count_text(model.n_params)}",
                f"context {whole_text(model.n_ctx)} · {model.n_layers} layers",
                f"vocabulary {whole_text(model.n_vocab)}",
                f"dialect {model.dialect}" if model.dialect else "",
            ]
            return [name, *(Content.styled(fact, palette.dim) for fact in facts if fact)]
        rows = [
            ("architecture", model.architecture),
            ("quantization", model.quantization),
            ("parameters", count_text(model.n_params)),
            ("context", f"{whole_text(model.n_ctx)} tokens"),
            ("dialect", model.dialect),
            ("layers", whole_text(model.n_layers)),
            ("vocabulary", whole_text(model.n_vocab)),
        ]
        return [name, *(pair(label, value, width, palette) for label, value in rows if value)]

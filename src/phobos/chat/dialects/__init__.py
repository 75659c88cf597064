"""The dialects, and the choice among them from a chat template's text. The first that fits is the one."""

from __future__ import annotations

from dataclasses import replace

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.families.apriel import APRIEL
from phobos.chat.dialects.families.cohere import COHERE, COHERE_TEXT, COMMAND_R
from phobos.chat.dialects.families.deepseek import DEEPSEEK, DEEPSEEK_R1, DEEPSEEK_TAGS, DEEPSEEK_V4
from phobos.chat.dialects.families.firefunction import FIREFUNCTION
from phobos.chat.dialects.families.functionary_3_1 import FUNCTIONARY_3_1
from phobos.chat.dialects.families.functionary_3_2 import FUNCTIONARY_3_2
from phobos.chat.dialects.families.gemma import GEMMA
from phobos.chat.dialects.families.gigachat import GIGACHAT
from phobos.chat.dialects.families.glm import GLM, GLM_RUN
from phobos.chat.dialects.families.granite import GRANITE
from phobos.chat.dialects.families.harmony import HARMONY
from phobos.chat.dialects.families.hermes import HERMES
from phobos.chat.dialects.families.kimi_k2 import KIMI_K2
from phobos.chat.dialects.families.kimi_k3 import KIMI_K3
from phobos.chat.dialects.families.lfm import LFM
from phobos.chat.dialects.families.llama3 import LLAMA3
from phobos.chat.dialects.families.minicpm import MINICPM
from phobos.chat.dialects.families.minimax_m1 import MINIMAX_M1
from phobos.chat.dialects.families.minimax_m3 import MINIMAX_M3
from phobos.chat.dialects.families.mistral import MISTRAL, MISTRAL_ARGS, MISTRAL_IDS
from phobos.chat.dialects.families.muse_glimmer import MUSE_GLIMMER
from phobos.chat.dialects.families.nemotron import NEMOTRON
from phobos.chat.dialects.families.plain import PLAIN
from phobos.chat.dialects.families.qwen_xml import QWEN_XML
from phobos.chat.dialects.families.seed_oss import SEED_OSS

# Where two fit, the one whose marks are rarer stands first.
DIALECTS: tuple[Dialect, ...] = (
    HARMONY,
    MUSE_GLIMMER,
    LFM,
    GEMMA,
    KIMI_K2,
    KIMI_K3,
    FUNCTIONARY_3_2,
    MINIMAX_M3,
    DEEPSEEK_R1,
    DEEPSEEK,
    DEEPSEEK_TAGS,
    DEEPSEEK_V4,
    MINICPM,
    SEED_OSS,
    GLM,
    GLM_RUN,
    QWEN_XML,
    FUNCTIONARY_3_1,
    MISTRAL_IDS,
    MISTRAL_ARGS,
    MISTRAL,
    COHERE_TEXT,
    COHERE,
    APRIEL,
    NEMOTRON,
    MINIMAX_M1,
    FIREFUNCTION,
    GIGACHAT,
    COMMAND_R,
    HERMES,
    LLAMA3,
    GRANITE,
)


def choose_dialect(template: str | None, *, knows_tools: bool = True, knows_calls: bool = False) -> Dialect:
    """The dialect of a chat template, by its text. `knows_tools` is false where the template has no words for tools;
    then calls are asked for in the plain dialect's form, whatever the model's own, unless the template `knows_calls`
    with their results and the dialect can introduce tools."""
    if template is None:
        return PLAIN
    found = next((dialect for dialect in DIALECTS if dialect.fits(template)), None)
    if found is None:
        return PLAIN
    if knows_tools or found.calls.without_tools:  # their messages stand in every answer
        return found
    if knows_calls and found.introduction:
        return found
    return replace(PLAIN, reasoning=found.reasoning)


def knows_reasoning(dialect: Dialect, template: str) -> bool:
    """Whether a template knows the dialect's thinking block."""
    return dialect.reasoning.begin in template

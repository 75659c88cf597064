"""DeepSeek: name and JSON between its own tokens (R1 with a fence round the JSON), and tags from V3.2 on."""

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.forms.named_calls import NamedCalls
from phobos.chat.dialects.forms.tagged_calls import TaggedCalls

SECTION, SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
V3 = NamedCalls(
    openers=(SECTION, CALL), begin=SECTION, end=SECTION_END, call_begin=CALL, name_end=SEPARATOR, call_end=CALL_END
)
R1 = NamedCalls(
    openers=(SECTION,),
    begin=SECTION,
    end=SECTION_END,
    call_begin=f"{CALL}function{SEPARATOR}",
    name_end="\n```json\n",
    call_end=CALL_END,
    fence_end="\n```",
    separator="\n",
)
_TAG = "｜DSML｜"


def _tags(section: str) -> TaggedCalls:
    return TaggedCalls(
        openers=(f"<{_TAG}{section}>",),
        begin=f"<{_TAG}{section}>\n",
        end=f"</{_TAG}{section}>",
        call_begin=f'<{_TAG}invoke name="',
        name_end='">\n',
        key_begin=f'<{_TAG}parameter name="',
        key_end='">',
        value_end=f"</{_TAG}parameter>\n",
        call_end=f"</{_TAG}invoke>\n",
        marks_strings=True,
    )


def _introduce(form: NamedCalls) -> str:
    """How a model is told of its tools where the template leaves that to the system message."""
    call = f"{form.call_begin}<name>{form.name_end}<arguments as JSON>{form.fence_end}{form.call_end}"
    return (
        "## Tools\nYou may call these tools, one JSON object a line:\n{tools}\n\n"
        "To call one, write exactly this, with its name and arguments that fit its parameters:\n"
        f"{form.begin}{call}{form.end}\n"
        f"For several calls repeat what stands between {form.begin} and {form.end}."
    )


DEEPSEEK_R1 = Dialect(
    "deepseek-r1", R1, lambda template: SECTION in template and "```json" in template, introduction=_introduce(R1)
)
DEEPSEEK = Dialect("deepseek", V3, lambda template: SECTION in template, introduction=_introduce(V3))
DEEPSEEK_TAGS = Dialect(
    "deepseek-tags", _tags("function_calls"), lambda template: _TAG in template and "function_calls>" in template
)
DEEPSEEK_V4 = Dialect("deepseek-v4", _tags("tool_calls"), lambda template: _TAG in template)

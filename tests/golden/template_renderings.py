"""Makes `template_renderings.json`: what `transformers` renders from the shared templates, as hashes.

Run it where `transformers` and `jinja2` are installed, with the package and `tests/` importable:

    PYTHONPATH=src:tests python tests/golden/template_renderings.py TEMPLATES_FOLDER

A rendering is the first that `transformers` gives for the conversation with the key `content` left out, then blank, of
a message that only calls tools, with arguments as mappings, then as JSON text, and with no tools as none, then as an
empty list; conversations that it refuses in every form are left out. Templates that name today's date are rendered
with a fixed one. Every rendering of the package is compared with it, differences are listed, and those that are meant
(the template has no words for tools, and the package writes them as text) are recorded as `null`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

from phobos.chat.template import ChatTemplate
from phobos.errors import RequestError
from template_conversations import BOS, CONVERSATIONS, EOS, Conversation, client_messages, client_tools

FORMS = [(content, text, no_tools) for no_tools in (None, []) for text in (False, True) for content in (None, "")]


def without_date(source: str) -> str:
    """The template with `strftime_now` answering the same on every day."""
    return "{% macro strftime_now(form) %}2026-01-02{% endmacro %}" + source if "strftime_now" in source else source


def render_reference(source: str, conversation: Conversation, thinking: bool) -> str | None:
    for content, text_arguments, no_tools in FORMS:
        messages = client_messages(conversation, content=content, text_arguments=text_arguments)
        try:
            return render_jinja_template(
                [messages],
                tools=client_tools(conversation) or no_tools,
                chat_template=source,
                add_generation_prompt=True,
                enable_thinking=thinking,
                bos_token=BOS,
                eos_token=EOS,
            )[0][0]
        except Exception as error:  # whatever a template raises means that it refuses
            reason = error
    print("  refused by transformers:", type(reason).__name__, str(reason)[:90])
    return None


def main() -> None:
    folder = Path(sys.argv[1])
    expected: dict[str, dict[str, str | None]] = {}
    n_equal = n_different = 0
    for path in sorted(folder.glob("*.jinja")):
        print(path.stem)
        source = without_date(path.read_text())
        template = ChatTemplate(source, BOS, EOS)
        found: dict[str, str | None] = {}
        for name, conversation in CONVERSATIONS.items():
            for thinking in (False, True):
                reference = render_reference(source, conversation, thinking)
                if reference is None:
                    continue
                key = f"{name}/{'thinking' if thinking else 'answering'}"
                try:
                    own = template.render_text(conversation.messages, conversation.tools, enable_thinking=thinking)
                except RequestError as error:
                    own = str(error)
                in_text = conversation.has_tools and not (template.traits.knows_tools and template.traits.knows_calls)
                if own == reference:
                    n_equal += 1
                    found[key] = hashlib.sha256(reference.encode()).hexdigest()[:24]
                elif in_text:
                    found[key] = None
                else:
                    n_different += 1
                    print("  DIFFERENT", key)
        expected[path.stem] = found
    out = Path(__file__).with_suffix(".json")
    out.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
    print(f"{n_equal} equal, {n_different} different; wrote {out.name}")
    sys.exit(n_different > 0)


if __name__ == "__main__":
    main()

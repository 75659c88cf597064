"""Where a chat template's source comes from: `--chat-template`, by name, file or text, else the model file.

The named ones are for files that bring none, and were written for this project. Each says what its family's models
were trained on: roles, separators, where BOS and the end tokens stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phobos.errors import UsageError


def _turns(body: str, generation: str) -> str:
    """A template that writes each message by `body` and opens the answer with `generation`."""
    opening = "{%- if add_generation_prompt %}{{ '" + generation + "' }}{% endif %}"
    return "{%- for message in messages %}" + body + "{% endfor %}" + opening


CHATML = _turns(
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}", "<|im_start|>assistant\\n"
)
_ROLES_ALTERNATE = (
    "{%- for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate between user and assistant, beginning with user') }}{% endif %}"
    "{% endfor %}"
)

NAMED_TEMPLATES = {
    "chatml": CHATML,
    "llama3": "{{ bos_token }}"
    + _turns(
        "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content|trim + '<|eot_id|>' }}",
        "<|start_header_id|>assistant<|end_header_id|>\\n\\n",
    ),
    "llama2": _ROLES_ALTERNATE
    + _turns(
        "{% if message.role == 'user' %}{{ bos_token + '[INST] ' + message.content|trim + ' [/INST]' }}"
        "{% else %}{{ ' ' + message.content|trim + ' ' + eos_token }}{% endif %}",
        "",
    ),
    "mistral": "{{ bos_token }}"
    + _ROLES_ALTERNATE
    + _turns(
        "{% if message.role == 'user' %}{{ '[INST] ' + message.content + ' [/INST]' }}"
        "{% else %}{{ ' ' + message.content|trim + eos_token }}{% endif %}",
        "",
    ),
    "gemma": "{{ bos_token }}"
    + _ROLES_ALTERNATE
    + _turns(
        "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' + message.content|trim"
        " + '<end_of_turn>\\n' }}",
        "<start_of_turn>model\\n",
    ),
    "phi3": _turns("{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}", "<|assistant|>\\n"),
    "zephyr": _turns("{{ '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' }}", "<|assistant|>\\n"),
}


def read_template(given: str) -> str:
    """The source that `--chat-template` means: one of the named templates, the source itself, or a file's text.
    Raises `UsageError`."""
    if given in NAMED_TEMPLATES:
        return NAMED_TEMPLATES[given]
    if "{%" in given or "{{" in given:
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        names = ", ".join(sorted(NAMED_TEMPLATES))
        raise UsageError(f"cannot read the chat template {given} ({reason}): name a file, or one of {names}") from error


def find_template(metadata: Mapping[str, Any]) -> str | None:
    """The source of a model file's own template, or None. A second one for requests that offer tools
    (`tokenizer.chat_template.tool_use`) is used for those, and for all where it is the only one."""
    plain, tooled = (_find_text(metadata, "tokenizer.chat_template" + name) for name in ("", ".tool_use"))
    if plain is None or tooled is None:
        return plain if tooled is None else tooled
    # Each begins on a line of its own, as it does alone: the newline behind a block tag is not printed.
    return "".join(
        ("{% if tools %}\n", tooled.removesuffix("\n"), "{% else %}\n", plain.removesuffix("\n"), "{% endif %}")
    )


def _find_text(metadata: Mapping[str, Any], key: str) -> str | None:
    found = metadata.get(key)
    return found if isinstance(found, str) and found.strip() else None

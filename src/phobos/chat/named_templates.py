"""Chat templates by name, for files that bring none (`--chat-template NAME`). Written for this project.

Each says what its family's models were trained on: roles, separators, where BOS and the end tokens stand.
"""

from __future__ import annotations


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

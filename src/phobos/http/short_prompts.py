"""Which requests are so short that rendering and tokenizing them on the loop takes less than handing them over."""

from __future__ import annotations

from phobos.chat.messages import GenerationRequest

SHORT_CHARS, SHORT_MESSAGES, SHORT_BIASES = 1000, 8, 16
SMALL_IDS = 4096


def is_short(request: GenerationRequest) -> bool:
    """Whether a prompt is plain text and little of it, and nothing else is to be tokenized or looked through."""
    if request.tools or request.output.kind != "text" or request.template_kwargs:
        return False
    if request.sampling.text_bias or len(request.sampling.logit_bias) > SHORT_BIASES:
        return False
    if request.prompt is not None:
        return isinstance(request.prompt, str) and len(request.prompt) + len(request.suffix or "") <= SHORT_CHARS
    messages = request.messages
    n_chars = sum(len(message.content or "") + len(message.reasoning or "") for message in messages)
    return len(messages) <= SHORT_MESSAGES and n_chars <= SHORT_CHARS and not any(m.tool_calls for m in messages)


def is_small(request: GenerationRequest) -> bool:
    """Whether looking a request through takes no time: a prompt of ids is looked at one by one."""
    return not isinstance(request.prompt, tuple) or len(request.prompt) <= SMALL_IDS

"""Which of llama.cpp's server tests do not apply to Phobos, and why; for `llama_server_tests.py`."""

from __future__ import annotations

import re

# Whole files: all their cases.
FILES_LEFT_OUT = {
    "test_embedding.py": "an embedding model",
    "test_rerank.py": "reranking",
    "test_lora.py": "LoRA adapters",
    "test_vision_api.py": "images",
    "test_speculative.py": "a draft model",
    "test_router.py": "one server for many models",
    "test_mcp_servers.py": "MCP servers and server-side tools",
    "test_tools_builtin.py": "MCP servers and server-side tools",
    "test_proxy.py": "MCP servers and server-side tools",
    "test_sleep.py": "unloading the model when idle",
}

_ONE_MODEL = "the answers, tokens or speed of one particular model"
# Cases by a pattern over file, name and parameters; the first that is found counts.
CASES_LEFT_OUT: tuple[tuple[str, str], ...] = (
    (r"test_chat_completion\[|test_chat_completion_stream\[|test_chat_completion_with_openai_library", _ONE_MODEL),
    (
        r"test_chat_completion_cached_tokens|test_completion_prompt_cache|test_completion_response_fields.*32",
        _ONE_MODEL,
    ),
    (r"::test_completion\[|test_completion_stream\[|test_completion(_stream)?_with_openai_library", _ONE_MODEL),
    (r"test_ctx_shift_disabled_short_prompt|test_ctx_shift_disabled_long_prompt|test_tokenize_with_bos", _ONE_MODEL),
    (r"test_load_split_model|thinking_with_reasoning_model|real_model|without_tool_call_slow", _ONE_MODEL),
    (r"test_responses_(stream_)?with_openai_library", _ONE_MODEL),
    (r"test_tool_call\.py::test_(weather|calc_result|thoughts|hello_world)", _ONE_MODEL),
    (r"__verbose|test_chat_template\b|assistant_prefill|vllm_compat|test_verbose_debug", "the prompt in the reply"),
    (r"test_apply_chat_template", "templates built in by name"),
    (r"test_completion_parallel_slots|test_nocache_long_input_prompt", _ONE_MODEL),
    (
        r"with_timings_per_token|test_logprobs_stream|CompletionMode.STREAMED",
        "null in a stream's first delta (here it is empty, as OpenAI's)",
    ),
    (
        r"test_invalid_chat_completion_req.messages7",
        "an error for two assistant messages in a row (here they are joined)",
    ),
    (r"test_date_inside_prompt.*Llama-3.3", "today's date in templates that contain a date of their own"),
    (r"test_cache_vs_nocache_prompt", "nothing: the test skips itself"),
    (r"test_no_ui|test_access_static_assets", "a built-in web page"),
    (r"test_server_slots|test_metrics_disabled", "`/slots` and `/metrics` off by default"),
    (r"test_server_multiple_addresses|aliases_and_tags", "several addresses, aliases and tags"),
    (r"test_security\.py::test_correct_api_key", "`/completions` in llama-server's shape (here it is OpenAI's)"),
    (r"test_cors_options", "web pages of any origin allowed by default"),
    (r"test_cors_(proxy|origins_defaults)", "MCP servers and server-side tools"),
    (r"test_local_media_file|vision|with_image|multimodal|two_images|image_payload|media_file", "images"),
    (r"progress|llama_telemetry", "prompt progress in the stream"),
    (r"test_anthropic_empty_messages", "an answer to an empty conversation (here a 400)"),
    (r"test_anthropic_thinking$", "reasoning requested from a model without it (here a 400)"),
    (r"test_metrics_embedding", "an embedding model"),
    (r"test_metrics_prometheus_format", "metrics for drafts, the longest prompt and busy slots"),
    (r"test_completion_unified", "one cache shared by all slots"),
    (r"test_n_probs_post", "post-sampling probabilities"),
    (r"test_ctx_shift_enabled", "context shift"),
    (r"test_infill\.py", "the route `/infill`"),
    (r"test_slot_save\.py", _ONE_MODEL),
    (r"test_kv_keep_only_active\.py", "llama-server's cache for idle slots"),
    (r"test_stream\.py", "resumable streams"),
    (r"test_compat_gcp\.py", "the routes of a hosting service"),
    (r"test_template\.py::test_reasoning.*(-on-|-auto-)", "reasoning on by default"),
    (r"test_add_generation_prompt.*False", "a prompt without the generation prompt"),
)


def find_reason(case: str) -> str | None:
    """What a case (`unit/FILE::NAME[PARAMETERS]`) needs that is not here; None where it applies."""
    file, _, _ = case.removeprefix("unit/").partition("::")
    if file in FILES_LEFT_OUT:
        return FILES_LEFT_OUT[file]
    return next((reason for pattern, reason in CASES_LEFT_OUT if re.search(pattern, case)), None)

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
    "test_mcp_servers.py": "MCP servers and tools run by the server",
    "test_tools_builtin.py": "MCP servers and tools run by the server",
    "test_proxy.py": "MCP servers and tools run by the server",
    "test_sleep.py": "giving the model back when idle",
}

# Cases by a pattern over file, name and parameters.
CASES_LEFT_OUT: tuple[tuple[str, str], ...] = ()


def find_reason(case: str) -> str | None:
    """What a case (`unit/FILE::NAME[PARAMETERS]`) needs that is not here; None where it applies."""
    file, _, _ = case.removeprefix("unit/").partition("::")
    if file in FILES_LEFT_OUT:
        return FILES_LEFT_OUT[file]
    return next((reason for pattern, reason in CASES_LEFT_OUT if re.search(pattern, case)), None)

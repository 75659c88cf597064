"""The agents that `check_agents.py` runs: packages, settings and commands, as a user would write them.

In settings, environment and commands `$address` stands for the server (`http://127.0.0.1:PORT`), `$task` for what is to
be done and `$programs` for `scripts/checks/clients`. Prompts and tools are the agents' own. What an agent would tell or
fetch elsewhere is switched off.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Agent:
    """`command` runs the task without asking anybody; `setup` comes before it. `files` are settings below the home
    folder, or, as `./NAME`, in the repository."""

    name: str
    packages: tuple[str, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    is_node: bool = True
    takes_proxy: bool = True  # and leaves loopback out of it


_OPENAI = {"OPENAI_BASE_URL": "$address/v1", "OPENAI_API_BASE": "$address/v1", "OPENAI_API_KEY": "none"}

_CODEX = """\
model = "local"
model_provider = "phobos"
check_for_update_on_startup = false

[model_providers.phobos]
name = "Phobos"
base_url = "$address/v1"
wire_api = "responses"

[analytics]
enabled = false
"""

_OPENCODE = {
    "autoupdate": False,
    "provider": {
        "phobos": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Phobos",
            "options": {"baseURL": "$address/v1"},
            "models": {"local": {"name": "local"}},
        }
    },
}

_PI = {
    "providers": {
        "phobos": {
            "baseUrl": "$address/v1",
            "api": "openai-completions",
            "apiKey": "none",
            "models": [{"id": "local"}],
        }
    }
}

_CONTINUE = """\
name: local
version: 1.0.0
schema: v1
models:
  - name: local
    provider: openai
    model: local
    apiBase: $address/v1
    apiKey: none
    roles: [chat, edit, apply]
    capabilities: [tool_use]
"""

AGENTS = (
    Agent(
        "Claude Code",
        ("@anthropic-ai/claude-code",),
        ("claude", "-p", "$task", "--permission-mode", "acceptEdits", "--allowedTools", "Write,Bash"),
        {
            "ANTHROPIC_BASE_URL": "$address",
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": "local",
            "ANTHROPIC_SMALL_FAST_MODEL": "local",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    ),
    Agent(
        "Codex",
        ("@openai/codex",),
        ("codex", "exec", "--sandbox", "danger-full-access", "$task"),
        files={".codex/config.toml": _CODEX},
    ),
    Agent(
        "OpenCode",
        ("opencode-ai",),
        ("opencode", "run", "--model", "phobos/local", "$task"),
        {
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        },
        {"./opencode.json": json.dumps(_OPENCODE, indent=2)},
    ),
    Agent(
        "pi",
        ("@mariozechner/pi-coding-agent",),
        ("pi", "--provider", "phobos", "--model", "local", "-p", "$task"),
        {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"},
        {".pi/agent/models.json": json.dumps(_PI, indent=2)},
    ),
    Agent(
        "qwen-code",
        ("@qwen-code/qwen-code",),
        ("qwen", "--yolo", "-p", "$task"),
        {**_OPENAI, "OPENAI_MODEL": "local"},
        {
            ".qwen/settings.json": json.dumps(
                {
                    "security": {"auth": {"selectedType": "openai"}},
                    "privacy": {"usageStatisticsEnabled": False},
                    "general": {"disableUpdateNag": True, "enableAutoUpdate": False},
                }
            )
        },
        takes_proxy=False,
    ),
    Agent(
        "cline",
        ("cline",),
        ("cline", "$task"),
        {"CLINE_TELEMETRY_DISABLED": "1", "DO_NOT_TRACK": "1"},
        setup=("cline", "auth", "-p", "openai-compatible", "-k", "none", "-m", "local", "-b", "$address/v1"),
    ),
    Agent(
        "Continue",
        ("@continuedev/cli",),
        ("cn", "-p", "$task", "--auto", "--config", "$home/local.yaml"),
        {"CONTINUE_TELEMETRY_ENABLED": "0"},
        {"local.yaml": _CONTINUE},
    ),
    Agent(
        "aider",
        ("aider-chat",),
        ("aider", "--model", "openai/local", "--yes-always", "--message", "$task"),
        {**_OPENAI, "AIDER_ANALYTICS": "false", "AIDER_CHECK_UPDATE": "false", "AIDER_SHOW_MODEL_WARNINGS": "false"},
        is_node=False,
    ),
    Agent(
        "mini-swe-agent",
        ("mini-swe-agent",),
        ("mini", "--yolo", "--exit-immediately", "--model", "openai/local", "--task", "$task"),
        {**_OPENAI, "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1"},
        is_node=False,
    ),
    Agent(
        "smolagents, tool calls",
        ("smolagents[openai]",),
        ("python", "$programs/smolagents_task.py", "ToolCallingAgent", "$address", "$task"),
        is_node=False,
    ),
    Agent(
        "smolagents, code",
        ("smolagents[openai]",),
        ("python", "$programs/smolagents_task.py", "CodeAgent", "$address", "$task"),
        is_node=False,
    ),
    Agent("crush", ("@charmland/crush",), ("crush", "run", "$task")),
)

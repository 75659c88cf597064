"""`phobos-cli` as a process, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CommandLine:
    """Runs the program with nothing of the user's own settings; `models` is its models folder."""

    models: Path

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PHOBOS_", "HF_"))}
        cache = {k: os.environ[k] for k in ("PHOBOS_KERNEL_CACHE_DIR",) if k in os.environ}
        return {**kept, **cache, "PHOBOS_MODELS": str(self.models), "COLUMNS": "100", **(extra or {})}

    def __call__(
        self, *args: str, env: Mapping[str, str] | None = None, stdin: str | None = None, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end; without `stdin` it reads nothing."""
        command = [sys.executable, "-m", "phobos.cli", *args]
        source = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            command, env=self.environment(env), text=True, capture_output=True, timeout=timeout_s, check=False, **source
        )

    def start(self, *args: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start it and let it run."""
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "phobos.cli", *args]
        return subprocess.Popen(
            command, env=self.environment(env), text=True, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )

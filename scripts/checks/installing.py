"""Installs other programs' packages for the scripts here, each in a folder of its own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

INSTALL_S = 400


class NotInstallableError(Exception):
    """The packages could not be had."""


@dataclass(frozen=True)
class Installed:
    """Packages of PyPI, or (`is_node`) of npm, installed in `home`."""

    home: Path
    packages: tuple[str, ...]
    is_node: bool

    @property
    def programs(self) -> Path:
        """The folder of their commands."""
        return self.home / "node_modules" / ".bin" if self.is_node else self.home / "bin"

    def describe_versions(self) -> str:
        """What was installed, such as "openai 1.2.3"."""
        if self.is_node:
            folders = [self.home / "node_modules" / name for name in self.packages]
            found = [json.loads((folder / "package.json").read_text()) for folder in folders]
            return ", ".join(f"{package['name']} {package['version']}" for package in found)
        code = "import sys; from importlib.metadata import version as v; print(*[f'{n} {v(n)}' for n in sys.argv[1:]])"
        names = [name.partition("[")[0] for name in self.packages]
        command = [str(self.programs / "python"), "-c", code, *names]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def install(packages: tuple[str, ...], home: Path, *, is_node: bool) -> Installed:
    """The packages in `home`, where they stay and are found the next time. Raises `NotInstallableError`."""
    installed = Installed(home, packages, is_node)
    if installed.programs.is_dir():
        return installed
    home.mkdir(parents=True, exist_ok=True)
    try:
        if is_node:
            npm = shutil.which("npm")
            if npm is None:
                raise NotInstallableError("node and npm are not installed")
            _run([npm, "install", "--no-audit", "--no-fund", *packages], home)
        else:
            _run([sys.executable, "-m", "venv", str(home)], home)
            _run([str(installed.programs / "python"), "-m", "pip", "install", "--quiet", *packages], home)
    except NotInstallableError:
        shutil.rmtree(home)
        raise
    return installed


def _run(command: list[str], home: Path) -> None:
    try:
        ran = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise NotInstallableError(f"installing took more than {INSTALL_S} s") from error
    if ran.returncode:
        said = [line for line in ran.stderr.splitlines() if re.search("error", line, re.IGNORECASE)]
        raise NotInstallableError("; ".join(said[:2]) or "no reason given")

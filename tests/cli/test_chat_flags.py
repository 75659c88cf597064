"""Flags of `phobos-cli chat` that only a model loaded here can honour, where a server runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from phobos import cli
from phobos.commands.parsing import flags, options
from phobos.errors import UsageError
from phobos.repl import local, remote

TYPED = {
    "ctx_size": "9", "threads": "1", "parallel": "1", "batch_size": "9", "cache_type_k": "q8_0", "cache_type_v": "q8_0",
    "cache_memory": "1G", "cache_ram": "0", "draft": "m.gguf", "chat_template": "chatml", "backend": "cpu",
    "device": "cpu", "gpu_layers": "0",
}  # fmt: skip


@pytest.mark.parametrize("name", flags.names_of(options.ENGINE_FLAGS))
def test_a_flag_for_loading_a_model_is_not_lost_to_a_running_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], models_folder: Path, name: str
) -> None:
    (models_folder / "SmolLM2-135M-Instruct-Q4_1.gguf").write_bytes(b"GGUF")  # where the default model would be
    asked: list[str] = []
    monkeypatch.setattr(remote, "find_server", lambda *arguments: asked.append("server"))
    monkeypatch.setattr(local, "open_local", lambda *arguments: (_ for _ in ()).throw(UsageError("loaded here")))
    typed = [f"--{name.replace('_', '-')}", *filter(None, [TYPED.get(name)])]  # the others are on or off
    assert cli.main(["chat", *typed]) == 2
    assert "loaded here" in capsys.readouterr().err and asked == []
    assert cli.main(["chat", "--attach", "http://127.0.0.1:1", *typed]) == 2
    assert f"{typed[0]} is for a model loaded here" in capsys.readouterr().err
    assert cli.main(["chat"]) == 2 and asked == ["server"]

"""What a newcomer meets when something is wrong: one sentence that says what to do, and the right exit code."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import CommandLine
from models.gguf_writer import write_gguf
from models.tiny_models import RECIPES, make_metadata, write_tiny_model
from phobos import cli, plan
from phobos.commands.parsing.flags import FURTHER_VARIABLES
from phobos.gguf.quants import GGMLType
from phobos.host import machine
from phobos.settings import EngineSettings

Call = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A sound model that runs in no time and says nothing sensible."""
    return write_tiny_model(RECIPES["llama"], tmp_path / "tiny.gguf")


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on standard error; nothing may be on standard output."""
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if " info " not in line]
    assert len(lines) == 1 and lines[0].startswith("phobos-cli: "), done.stderr
    assert "Traceback" not in done.stderr and "should not have happened" not in done.stderr
    return lines[0]


ASK = ("--backend", "reference", "--temp", "0", "-n", "4", "--raw", "hello")


def test_no_model(call: Call) -> None:
    done = call("hello")
    assert done.returncode == 1
    assert "run `phobos-cli pull smollm2`" in sentence(done)


def test_a_wrong_path(call: Call, tiny: Path) -> None:
    done = call("--gguf", str(tiny.with_name("tinny.gguf")), *ASK)
    assert done.returncode == 1
    assert f"did you mean {tiny}?" in sentence(done)


@pytest.mark.parametrize("serve", [False, True])
@pytest.mark.parametrize(
    ("name", "words"),
    [("text", "not a GGUF file"), ("empty", "not a GGUF file"), ("half", ""), ("folder", "is a folder")],
)
def test_a_file_that_is_no_model(call: Call, tiny: Path, tmp_path: Path, name: str, words: str, serve: bool) -> None:
    path = tmp_path / f"{name}.gguf"
    if name == "folder":
        path.mkdir()
    else:
        whole = tiny.read_bytes()
        path.write_bytes({"text": b"<html>not found</html>" * 9, "empty": b"", "half": whole[: len(whole) // 2]}[name])
    done = call("--gguf", str(path), *(("--listen", "127.0.0.1:0") if serve else ASK))
    assert done.returncode == 1
    assert words in sentence(done) and name in sentence(done)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("PHOBOS_CTX_SIZ", "PHOBOS_CTX_SIZE"), ("PHOBOS_FLEET", None), ("PHOBOS_VRM", "PHOBOS_VRAM")],
)
def test_a_misspelt_variable(call: Call, monkeypatch: pytest.MonkeyPatch, name: str, meant: str | None) -> None:
    monkeypatch.setenv(name, "1")
    done = call("models")
    if meant is None:
        assert done.returncode == 0, "it may be anybody's"
    else:
        assert done.returncode == 2
        assert f"sets {name}, which is not a setting: did you mean {meant}?" in sentence(done)


def test_variables_without_a_flag_are_described() -> None:
    described = (Path(__file__).parents[2] / "docs" / "environment.md").read_text(encoding="utf-8")
    assert [name for name in FURTHER_VARIABLES if f"| `{name}` |" not in described] == []


@pytest.mark.parametrize(("closed", "is_heard"), [(">&-", False), ("<&- 2>&-", True)])
def test_closed_standard_streams(run_cli: CommandLine, tiny: Path, closed: str, is_heard: bool) -> None:
    line = shlex.join([sys.executable, "-m", "phobos.cli", "--gguf", str(tiny), *ASK])
    done = subprocess.run(
        ["/bin/sh", "-c", f"{line} {closed}"], env=run_cli.environment(), text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout.strip()) is is_heard


def test_an_unknown_architecture(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "new.gguf"
    metadata = {**make_metadata(RECIPES["llama"]), "general.architecture": "brandnew"}
    write_gguf(path, metadata, {"token_embd.weight": (GGMLType.F32, np.zeros((300, 256), np.float32))})
    done = call("--gguf", str(path), *ASK)
    assert done.returncode == 1
    assert "'brandnew' is not supported: Phobos runs " in sentence(done)
    done = call("inspect", str(path))
    assert done.returncode == 0 and "no: architecture 'brandnew' is not supported" in done.stdout


def test_a_missing_tensor_is_named(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "torn.gguf"
    embedding = {"token_embd.weight": (GGMLType.F32, np.zeros((300, 256), np.float32))}
    write_gguf(path, make_metadata(RECIPES["llama"]), embedding)
    done = call("--gguf", str(path), *ASK)
    assert done.returncode == 1 and "has no tensor blk.0." in sentence(done)


def test_too_little_memory_is_told_beforehand(tiny: Path) -> None:
    small = machine.Memory(total=300 << 20, available=100 << 20)
    told = plan.make_plan(EngineSettings(tiny), small)
    assert not told.fits
    assert told.reason.endswith("are free: choose a smaller model or quantization, or close other programs")
    roomy = plan.make_plan(EngineSettings(tiny), machine.Memory(total=4 << 30, available=2 << 30))
    assert roomy.fits and roomy.max_ctx == roomy.n_ctx_train


def test_a_context_that_does_not_fit_names_one_that_does(tiny: Path) -> None:
    per_token = plan.make_plan(EngineSettings(tiny)).cache_bytes_per_token
    fixed = plan.make_plan(replace(EngineSettings(tiny), n_slots=1)).total_bytes - 1536 * per_token
    have = machine.Memory(None, int((fixed + 1100 * per_token) / (1 - plan.SPARE)))
    told = plan.make_plan(replace(EngineSettings(tiny), n_slots=1, n_ctx=1536), have)
    assert not told.fits and 1000 <= told.max_ctx <= 1100
    assert f"use --ctx-size {told.max_ctx} or less" in told.reason


def test_a_context_beyond_the_model(call: Call, tiny: Path) -> None:
    done = call("--gguf", str(tiny), "-c", "100000", *ASK)
    assert done.returncode == 2 and "use --ctx-size 1536 or less" in sentence(done)


def test_a_busy_port(call: Call, tiny: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = call("--gguf", str(tiny), "--port", str(port))
    assert done.returncode == 1 and str(port) in sentence(done)


def test_no_network(run_cli: CommandLine) -> None:
    done = run_cli("pull", "hf:maker/tiny", "--quiet", env={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert done.returncode == 1 and "check the network" in sentence(done)
    done = run_cli("pull", "hf:maker/tiny", "--quiet", env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 1 and "HF_HUB_OFFLINE is set" in sentence(done)


def test_a_models_folder_that_cannot_be_made(run_cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run_cli("pull", "smollm2", "--quiet", env={"PHOBOS_MODELS": str(tmp_path / "file" / "models")})
    assert done.returncode == 1 and "set PHOBOS_MODELS" in sentence(done)


def test_a_prompt_that_is_too_long(call: Call, tiny: Path) -> None:
    done = call("--gguf", str(tiny), "-c", "32", *ASK[:-1], "the " * 100)
    assert done.returncode == 1 and "raise --ctx-size" in sentence(done)


def test_a_bad_flag(call: Call) -> None:
    done = call("--tmp", "0", "hi")
    assert done.returncode == 2 and "did you mean --temp?" in sentence(done)


def test_a_sound_model_answers(call: Call, tiny: Path) -> None:
    done = call("--gguf", str(tiny), *ASK)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout != ""
    assert call("--gguf", str(tiny), *ASK).stdout == done.stdout


# The commands that look at files


def test_inspect_and_models(models_folder: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    tiny.rename(models_folder / "tiny.gguf")
    (models_folder / "broken.gguf").write_bytes(b"GGUF" * 20)
    assert cli.main(["inspect", "tiny", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["architecture"], report["n_layers"], report["n_ctx"], report["problem"]) == ("llama", 2, 1536, None)
    facts = {fact["key"]: fact for fact in report["metadata"]}
    assert facts["tokenizer.ggml.tokens"]["text"] == "['<unk>', '<s>', '</s>', '<0x00>', …]"
    assert facts["tokenizer.ggml.tokens"]["n_items"] == 300 and facts["llama.block_count"]["text"] == "2"
    assert report["n_vocab"] == 300 and len(report["tensors"]) == len({t["name"] for t in report["tensors"]}) > 10
    assert cli.main(["models", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)["models"]}
    assert listed["tiny.gguf"]["n_ctx"] == 1536 and listed["tiny.gguf"]["n_params"] == report["n_params"]
    assert listed["broken.gguf"]["problem"]
    assert cli.main(["models"]) == 0
    assert "tiny.gguf" in capsys.readouterr().out
    assert cli.main(["models", "--remove", "tiny", "--yes"]) == 0
    assert not (models_folder / "tiny.gguf").exists()


def test_removing_asks_first(models_folder: Path, tiny: Path, call: Call) -> None:
    tiny.rename(models_folder / "tiny.gguf")
    done = call("models", "--remove", "tiny")
    assert done.returncode == 2 and "add --yes" in done.stderr
    assert (models_folder / "tiny.gguf").exists()


def test_inspect_shows_everything_asked_for(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(tiny), "--tensors"]) == 0
    out = capsys.readouterr().out
    assert "blk.1.ffn_down.weight" in out and "llama.context_length" in out and "runs here" in out
    assert max(map(len, out.splitlines())) < 1000
    assert cli.main(["inspect", str(tiny), "--template"]) == 0


def test_doctor_tells_what_blocks(
    models_folder: Path, tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    assert cli.main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["runnable"]
    assert [c["name"] for c in found["checks"] if c["status"] == "blocked"] == ["model"]
    assert cli.main(["doctor", "--gguf", str(tiny)]) == 0
    assert "BLOCKED" not in capsys.readouterr().out
    monkeypatch.setattr(machine, "read_memory", lambda: machine.Memory(300 << 20, 100 << 20))
    assert cli.main(["doctor", "--gguf", str(tiny)]) == 1
    out = capsys.readouterr().out
    assert "close other programs" in out and "BLOCKED" in out


def test_plan_prints_what_it_knows(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    assert cli.main(["plan", str(tiny), "-c", "1000", "-np", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["total_bytes"] == sum(part["n_bytes"] for part in told["parts"])
    assert (told["n_ctx"], told["n_slots"]) == (1000, 2)
    assert cli.main(["plan", str(tiny)]) == 0
    assert "it fits" in capsys.readouterr().out

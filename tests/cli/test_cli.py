"""The command line itself: what is a command and what a prompt, where flags come from, and how failures are told."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from command_line import CommandLine
from phobos import __version__, cli
from phobos.commands import ask, completion
from phobos.commands.parsing import options
from phobos.settings import EngineSettings, SamplingDefaults, ServeSettings


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    """Leave logging as it was."""
    logger = logging.getLogger("phobos")
    before = logger.level, logger.handlers[:], logger.propagate
    yield
    logger.level, logger.handlers[:], logger.propagate = before


@pytest.fixture
def model(models_folder: Path) -> Path:
    """A file where the default model would be."""
    path = models_folder / "SmolLM2-135M-Instruct-Q4_1.gguf"
    path.write_bytes(b"GGUF")
    return path


class Seen:
    """What the command `run` was asked to do."""

    def __init__(self) -> None:
        self.what = ""
        self.values: dict[str, Any] = {}
        self.prompt: str | None = None
        self.listen: str | None = None


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()

    def answer(values: dict[str, Any], words: tuple[str, ...]) -> int:
        found.what, found.values, found.prompt = "answer", values, ask.read_prompt(words, values["file"])
        return 0

    def serve(values: dict[str, Any], listen: str) -> int:
        found.what, found.values, found.listen = "serve", values, listen
        return 0

    monkeypatch.setattr(ask, "_answer", answer)
    monkeypatch.setattr(ask, "_serve", serve)
    return found


# Words and commands


@pytest.mark.parametrize(
    ("args", "prompt"),
    [
        (["hello"], "hello"),
        (["why", "is", "it"], "why is it"),
        (["--temp", "0", "hello"], "hello"),
        (["hello", "--temp", "0"], "hello"),
        (["--", "chat"], "chat"),
        (["--seed", "-1", "--", "models"], "models"),
        (["tell", "me", "about", "models"], "tell me about models"),
        (["models and views"], "models and views"),
        (["-n", "-1", "--no-prefix-cache", "hi"], "hi"),
    ],
)
def test_a_word_that_is_no_command_is_a_prompt(seen: Seen, args: list[str], prompt: str) -> None:
    assert cli.main(args) == 0
    assert (seen.what, seen.prompt) == ("answer", prompt)


@pytest.mark.parametrize("args", [["models", "--json"], ["--json", "models"], ["--log", "off", "models", "--json"]])
def test_flags_may_stand_before_a_command(
    models_folder: Path, capsys: pytest.CaptureFixture[str], args: list[str]
) -> None:
    assert cli.main(args) == 0
    assert '"catalog"' in capsys.readouterr().out


def test_a_pipe_and_a_file_are_read(seen: Seen, run_stdin: Any, tmp_path: Path) -> None:
    run_stdin("from the pipe\n")
    assert cli.main([]) == 0
    assert seen.prompt == "from the pipe"
    run_stdin("more\n")
    assert cli.main(["say:", "-"]) == 0
    assert seen.prompt == "say:\n\nmore"
    (tmp_path / "p.txt").write_text("from a file\n")
    run_stdin("unread")
    assert cli.main(["-f", str(tmp_path / "p.txt")]) == 0
    assert seen.prompt == "from a file"


@pytest.fixture
def run_stdin(monkeypatch: pytest.MonkeyPatch) -> Any:
    import io

    def give(text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))

    return give


@pytest.mark.parametrize(
    ("given", "sentence"), [(b"", "the prompt is empty"), (b"\xff\xfe", "is not valid UTF-8"), (b"\n", "is empty")]
)
def test_a_pipe_without_a_prompt(
    seen: Seen, run_stdin: Any, capsys: pytest.CaptureFixture[str], given: bytes, sentence: str
) -> None:
    run_stdin(given)
    assert cli.main(["--temp", "0"]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "listen"),
    [
        (["--listen", "127.0.0.1:1"], "127.0.0.1:1"),
        (["--port", "9"], "127.0.0.1:9"),
        (["--host", "::1"], "[::1]:8080"),
        (["--host", "0.0.0.0", "--port", "0"], "0.0.0.0:0"),
    ],
)
def test_ways_to_serve(seen: Seen, args: list[str], listen: str) -> None:
    assert cli.main(args) == 0
    assert (seen.what, seen.listen) == ("serve", listen)


def test_a_prompt_wins_over_an_address_from_the_environment(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHOBOS_LISTEN", "127.0.0.1:1")
    assert cli.main(["hello"]) == 0
    assert seen.what == "answer"
    assert cli.main(["--temp", "0"]) == 0
    assert seen.what == "serve"


def test_a_prompt_and_an_address_are_refused(seen: Seen, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["hello", "--listen", ":0"]) == 2
    assert "give one of them" in capsys.readouterr().err


# Flags, variables, file


@pytest.fixture
def default_values(seen: Seen) -> dict[str, Any]:
    assert cli.main(["hello"]) == 0
    return seen.values


def test_flag_defaults_are_the_settings_defaults(default_values: dict[str, Any]) -> None:
    assert options.read_engine(default_values, Path("m")) == EngineSettings(Path("m"))
    assert options.read_serve(default_values, "127.0.0.1:8080") == ServeSettings()


def test_every_flag_reaches_its_setting(seen: Seen) -> None:
    args = (
        "-c 512 -t 3 -np 4 -b 64 -ctk f16 -ctv q8_0 --no-prefix-cache --no-bare-calls --chat-template {{t}} "
        "--backend reference -n 7 --temp 0.5 --top-k 3 --top-p 0.4 --min-p 0.1 --typical 0.2 --presence-penalty 0.3 "
        "--frequency-penalty -0.3 --repeat-penalty 1.1 -s 42 hello"
    )
    assert cli.main(args.split()) == 0
    sampling = SamplingDefaults(0.5, 3, 0.4, 0.1, 0.2, 0.3, -0.3, 1.1, 42, 7)
    expected = EngineSettings(
        Path("m"), "reference", n_threads=3, n_ctx=512, n_slots=4, chunk_rows=64, cache_type_k="f16",
        cache_type_v="q8_0", prefix_cache=False, chat_template="{{t}}", bare_calls=False, sampling=sampling,
    )  # fmt: skip
    assert options.read_engine(seen.values, Path("m")) == expected


def test_serving_flags_reach_their_settings(seen: Seen, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# mine\nk3\n\n")
    args = (
        f"--listen :1 --alias me --api-key k1 --api-key k2 --api-key-file {tmp_path}/keys --insecure --allowed-host h "
        "--cors-origin +o --max-body 1M --max-connections 9 --max-connections-per-address 3 --max-queue 0 "
        "--queue-timeout 1.5 --request-timeout 2 --keep-alive 3 --write-timeout 6 --heartbeat 4 --drain 0 "
        "--strict-model --strict-fields --prefill-thinking hm --no-continue-assistant"
    )
    assert cli.main(args.split()) == 0
    expected = ServeSettings(
        listen=":1", model_id="me", api_keys=("k1", "k2", "k3"), insecure=True, allowed_hosts=("h",),
        cors_origins=("+o",), max_body_bytes=1 << 20, max_connections=9, max_connections_per_address=3, max_queue=0,
        queue_timeout_s=1.5, request_timeout_s=2, keep_alive_s=3, write_timeout_s=6, heartbeat_s=4, drain_s=0,
        strict_model=True, strict_fields=True, prefill_thinking="hm", continue_assistant=False,
    )  # fmt: skip
    assert options.read_serve(seen.values, str(seen.listen)) == expected


def test_line_over_environment_over_file(seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "c.toml"
    config.write_text('ctx-size = 100\ntemp = 1\ntop_k = 5\nno-tui = true\napi-key = "one"\nlisten = "127.0.0.1:5"\n')
    monkeypatch.setenv("PHOBOS_TEMP", "2")
    monkeypatch.setenv("PHOBOS_TOP_K", "6")
    assert cli.main(["--config", str(config), "--top-k", "7"]) == 0
    found = {name: seen.values[name] for name in ("ctx_size", "temp", "top_k", "tui", "api_key")}
    assert found == {"ctx_size": 100, "temp": 2.0, "top_k": 7, "tui": False, "api_key": ("one",)}
    assert seen.listen == "127.0.0.1:5"


def test_a_file_serves_every_command(models_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.toml"
    config.write_text("ctx-size = 100\njson = true\n")
    assert cli.main(["models", "--config", str(config)]) == 0
    assert capsys.readouterr().out.startswith("{")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ctx-sise = 1", "'ctx-sise', which is not a flag: did you mean 'ctx-size'?"),
        ("ctx-size = 'many'", "'many' is not a whole number"),
        ("ctx-size = ", "is not a valid TOML file"),
        ("temp = 9", "it must be from 0 to 2"),
    ],
)
def test_wrong_files_say_what_is_wrong(
    seen: Seen, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    config = tmp_path / "c.toml"
    config.write_text(text)
    assert cli.main(["hello", "--config", str(config)]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--tmp", "1", "x"], "there is no flag --tmp: did you mean --temp?"),
        (["--top_k", "1", "x"], "did you mean --top-k?"),
        (["--ctx_size=5", "x"], "did you mean --ctx-size?"),
        (["models", "--jsn"], "did you mean --json?"),
        (["--zzzzzz", "x"], "there is no flag --zzzzzz (see --help)"),
        (["-hf", "a/b:Q8_0", "x"], "there is no flag -hf: write --gguf hf:owner/repo:QUANT"),
        (["--flash-attn", "x"], "there is no flag --flash-attn: Phobos always does this: leave it out"),
        (["-V"], "there is no flag -V: did you mean --version?"),
        (["--mmap", "x"], "there is no flag --mmap: weights are packed for this processor while they are read"),
        (["--no-mmap", "x"], "so a model runs from memory, never from its file; leave it out"),
        (["--temp", "hot", "x"], "it must be a number, not 'hot'"),
        (["--threads", "0", "x"], "--threads: 0 is too small: give at least 1"),
        (["--cache-type-k", "q9", "x"], "'q9' is not one of 'f16', 'q8_0'"),
        (["--max-body", "lots", "x"], "'lots' is not a size"),
        (["--gguf"], "option '--gguf' requires an argument"),
        (["inspect"], "missing argument 'FILE'"),
        (["pull", "a", "b"], "got unexpected extra argument"),
        (["--listen", ":1", "--port", "2"], "give one of them"),
        (["--log", "loud", "x"], "'loud' is not one of"),
        (["--file", "/nowhere/p.txt"], "cannot read /nowhere/p.txt"),
    ],
)
def test_usage_errors_are_one_sentence(
    models_folder: Path, capsys: pytest.CaptureFixture[str], args: list[str], sentence: str
) -> None:
    code = cli.main(args)
    out, err = capsys.readouterr()
    assert sentence in err and err.startswith("phobos-cli: ") and err.count("\n") == 1
    assert out == ""
    assert code == (1 if "cannot read" in sentence else 2)


# Failures


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, ""),
        (MemoryError(), 1, "phobos-cli: out of memory: choose a smaller model"),
        (PermissionError(13, "Permission denied", "/x"), 1, "phobos-cli: Permission denied: /x"),
        (
            ValueError("boom"),
            1,
            "phobos-cli: this should not have happened (ValueError: boom): run it again with --debug",
        ),
    ],
)
def test_what_escapes_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, sentence: str
) -> None:
    def fail(*args: object) -> int:
        raise error

    monkeypatch.setattr(ask, "_answer", fail)
    assert cli.main(["hello"]) == code
    err = capsys.readouterr().err
    assert err.startswith(sentence) and "Traceback" not in err
    if isinstance(error, ValueError):
        assert cli.main(["hello", "--debug"]) == 1
        assert "Traceback" in capsys.readouterr().err


# Help


def test_help_is_quick_and_complete(run_cli: CommandLine) -> None:
    seconds = []
    for _ in range(3):
        before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        done = run_cli("--help")
        seconds.append(sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before)
    assert done.returncode == 0 and done.stderr == ""
    assert "\x1b" not in done.stdout
    for word in (*cli.COMMANDS, "--ctx-size", "--listen", "--no-tui", "[the model's own, else 0.8]", "Exit codes"):
        assert word in " ".join(done.stdout.split())
    assert min(seconds) < 0.4  # processor time, 0.15 s on a quiet machine; the rest is room for a slower one


def test_help_imports_nothing_heavy(run_cli: CommandLine) -> None:
    import subprocess
    import sys

    code = "import sys; from phobos import cli; cli.main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    heavy = {
        "numpy",
        "numba",
        "llvmlite",
        "tokenizers",
        "asyncio",
        "h11",
        "textual",
        "prompt_toolkit",
        "huggingface_hub",
    }
    assert not heavy & loaded


def test_version_imports_no_model_family_and_no_compiler(run_cli: CommandLine) -> None:
    import subprocess
    import sys

    code = "import sys; from phobos import cli; cli.main(['--version']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("phobos ")
    assert not {"numba", "phobos.archs", "phobos.program.steps", "tokenizers", "asyncio"} & set(done.stderr.split())


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert cli.main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"phobos-cli {name}" in out and "--debug" in out


def test_every_flag_is_documented_and_named_once() -> None:
    root, ctx = cli.root, click.Context(cli.root)
    for name in (*cli.COMMANDS, cli.ASK):
        found = root.get_command(ctx, name)
        assert found is not None
        names = [opt for param in found.params if isinstance(param, click.Option) for opt in param.opts]
        assert len(names) == len(set(names)), name
        for param in found.params:
            if isinstance(param, click.Option) and param.name != "version":
                assert param.help and param.envvar, (name, param.name)


def test_a_wrong_value_says_where_it_stands(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "phobos.toml"
    config.write_text("# mine\ntop-k = 4\nctx-size = 'many'\n")
    wrong = "'many' is not a whole number"
    assert call("--ctx-size", "many", "x").stderr == f"phobos-cli: --ctx-size: {wrong}\n"
    assert call("--config", str(config), "x").stderr == f"phobos-cli: ctx-size in {config}, line 3: {wrong}\n"
    monkeypatch.setenv("PHOBOS_CTX_SIZE", "many")
    assert call("x").stderr == f"phobos-cli: the environment variable PHOBOS_CTX_SIZE: {wrong}\n"


def test_version_names_what_a_report_needs(run_cli: CommandLine) -> None:
    done = run_cli("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"phobos {__version__}\n")
    for word in ("numba", "cpu path", "kernel cache"):
        assert word in done.stdout


# Completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert cli.main(["completion", shell]) == 0
    assert completion.VARIABLE in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("pu", "pull"),
        ("--ctx", "--ctx-size"),
        ("inspect --ten", "--tensors"),
        ("plan smol", "smollm2"),
        ("pull qwen3-3", "qwen3-30b-a3b"),
        ("--gguf smollm2-1", "smollm2-1.7b"),
        ("serve smollm2-1", "smollm2-1.7b"),
        ("--backend c", "cpu"),
        ("", "models"),
    ],
)
def test_completion_completes(run_cli: CommandLine, words: str, expected: str) -> None:
    env = {
        completion.VARIABLE: "bash_complete",
        "COMP_WORDS": f"phobos-cli {words}",
        "COMP_CWORD": str(len(words.split(" "))),
    }
    done = run_cli(env=env)
    offered = [line.partition(",")[2] for line in done.stdout.splitlines()]
    assert expected in offered, done.stdout + done.stderr


def test_a_mark_of_byte_order_is_no_part_of_a_prompt_or_template(seen: Seen, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes(b"\xef\xbb\xbfhello\n")
    (tmp_path / "t.jinja").write_bytes(b"\xef\xbb\xbf{{ messages }}")
    assert cli.main(["--file", f"{tmp_path}/p.txt", "--chat-template", f"{tmp_path}/t.jinja"]) == 0
    assert seen.prompt == "hello"
    assert options.read_engine(seen.values, Path("m")).chat_template == "{{ messages }}"

"""list, show, settings, completion, and what all commands share: help, errors, exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gguf_builder import tiny_llama
from hearth.app.cli.commands import COMMANDS
from hearth.app.exit_codes import ExitCode
from hearth.backends import errors
from tiny_rerankers import tiny_bert, tiny_jina_reranker

MODEL_KEYS = {
    "name",
    "path",
    "origin",
    "size_bytes",
    "file_type",
    "architecture",
    "parameters",
    "context",
    "repo",
    "error",
}


def test_list_shows_good_and_bad_models(hearth, home) -> None:
    (home / "data" / "models" / "bad.gguf").write_bytes(b"GGUF")
    result = hearth("ls")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].split() == [
        *("NAME", "SIZE", "FORMAT", "PARAMETERS", "CONTEXT", "ARCHITECTURE", "FROM")
    ]
    tiny = next(line for line in lines if line.startswith("tiny"))
    assert tiny.split()[3:] == ["F32", "108.6", "k", "512", "llama", "library"]
    assert any(line.startswith("bad") and "unusable" in line for line in lines)
    assert "bad:" in result.err


def test_list_json(hearth, home) -> None:
    listed = hearth("list", "--json").json
    assert listed["folder"] == str(home / "data" / "models")
    model = next(model for model in listed["models"] if model["name"] == "tiny")
    assert set(model) == MODEL_KEYS
    assert (model["error"], model["context"], model["origin"]) == (None, 512, "library")


def test_show_tells_the_header(hearth) -> None:
    result = hearth("show", "tiny")
    assert result.code == 0
    assert "108.6 k (108,608)" in result.out
    assert "f16 256" in result.out and "q8_0 not possible" in result.out
    assert "not stated" in result.out
    facts = hearth("show", "tiny", "--json", "--tensors").json
    assert facts["kv_bytes_per_token"] == {
        "f32": 512,
        "f16": 256,
        "q8_0": None,
        "q4_0": None,
        "fp8": 128,
    }
    assert (facts["architecture"], facts["context"], facts["vocabulary"]) == ("llama", 512, 270)
    assert len(facts["tensors"]) == facts["tensor_count"] == 21
    assert len(facts["template_sha256"]) == 64


def test_show_takes_only_texts_for_texts(hearth, home) -> None:
    path = home / "data" / "models" / "odd.gguf"
    tiny_llama(path, extra={"general.license": 7})
    assert hearth("show", "odd", "--json").json["licence"] is None


def test_show_prints_the_template_as_it_is(hearth) -> None:
    template = hearth("show", "tiny", "--template").out
    assert template.startswith("{% for m in messages %}")
    assert hearth("show", "tiny", "--template", "--json").json["template"] == template.rstrip("\n")


@pytest.mark.parametrize("other", ["--verify", "--tensors"])
def test_show_refuses_what_the_template_alone_leaves_out(hearth, other) -> None:
    refused = hearth("show", "tiny", "--template", other)
    assert refused.code == 2 and other in refused.err and refused.out == ""


def test_show_of_a_corrupt_file_names_the_field(hearth, home) -> None:
    path = home / "data" / "models" / "tiny.gguf"
    path.write_bytes(path.read_bytes()[:5000])
    result = hearth("show", "tiny", "--json")
    assert result.code == 1
    assert result.json["error"]["code"] == "corrupt_file"
    assert result.json["error"]["data"]["field"]


def test_settings_say_where_values_come_from(hearth, monkeypatch) -> None:
    monkeypatch.setenv("HEARTH_TOP_K", "3")
    found = hearth("settings", "tiny", "--json").json["settings"]
    assert found["top_k"] == {"value": 3, "origin": "HEARTH_TOP_K"}
    assert found["model"] == {"value": "tiny", "origin": "HEARTH_MODEL"}
    assert found["top_p"] == {"value": 0.95, "origin": "default"}
    flagged = hearth("--offline", "settings", "--json").json["settings"]
    assert flagged["offline"] == {"value": True, "origin": "--offline"}


def test_settings_can_be_started_from_a_printed_file(hearth, home) -> None:
    (home / "config").mkdir()
    (home / "config" / "settings.toml").write_text(hearth("settings", "--default").out)
    assert hearth("settings").code == 0


def test_a_broken_settings_file_stops_a_run_with_exit_code_2(hearth, home) -> None:
    (home / "config").mkdir()
    (home / "config" / "settings.toml").write_text("[sampling]\ntop_kk = 1\n")
    result = hearth("run", "tiny", "hi")
    assert result.code == 2
    assert "settings.toml, [sampling]" in result.err and "Did you mean top_k?" in result.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_back(hearth, shell) -> None:
    result = hearth("completion", shell)
    assert result.code == 0
    assert "_HEARTH_COMPLETE" in result.out
    assert result.err == ""


COMPLETE = """
import sys
from hearth.app.cli.main import main
code = main()
heavy = {"torch", "llama_cpp", "numpy", "asyncio"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else code)
"""


def complete(words: str, home) -> list[str]:
    """What bash would offer for the last of `words`, and anything said on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", COMPLETE],
        env={
            "HEARTH_HOME": str(home),
            "_HEARTH_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines()] + done.stderr.splitlines()


def test_model_names_complete_from_the_library(home) -> None:
    assert complete("hearth run ti", home) == ["tiny"]
    assert complete("hearth show TI", home) == ["tiny"]
    assert complete("hearth chat --sta", home) == ["--stats"]
    assert set(complete("hearth ", home)) == set(COMMANDS)


def test_help_lists_the_commands_and_the_exit_codes(hearth) -> None:
    result = hearth("--help")
    assert result.code == 0
    assert hearth("-h").out == result.out
    for name in COMMANDS:
        assert f"  {name} " in result.out
    for code in ExitCode:
        assert code.meaning in result.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_short_and_long_help(hearth, command) -> None:
    assert hearth(command, "-h").out == hearth(command, "--help").out != ""


def test_version(hearth) -> None:
    result = hearth("--version")
    assert result.code == 0
    assert result.out.startswith("hearth ")


@pytest.mark.parametrize(
    ("typed", "meant"), [("rnu", "run"), ("lst", "list"), ("doctr", "doctor"), ("Chat", "chat")]
)
def test_an_unknown_command_gets_the_nearest(hearth, typed, meant) -> None:
    result = hearth(typed)
    assert result.code == 2
    assert f'"{typed}"' in result.err and f"Did you mean {meant}?" in result.err


def test_an_unknown_model_has_exit_code_3_in_words_and_json(hearth, home) -> None:
    result = hearth("run", "tinny", "hi")
    assert (result.code, result.out) == (3, "")
    assert "Did you mean tiny?" in result.err and str(home / "data" / "models") in result.err
    result = hearth("show", "tinny", "--json")
    assert result.code == 3
    assert result.json["error"]["data"]["nearest"] == ["tiny"]


def test_no_host_is_an_error(hearth) -> None:
    result = hearth("run", "tiny", "hi", unreachable="The host process did not answer within 15 s.")
    assert result.code == 1
    assert "did not answer" in result.err


def test_a_defect_is_told_in_short_and_kept_in_the_log(hearth, home, monkeypatch) -> None:
    def broken(self):
        raise ZeroDivisionError("oh no")

    monkeypatch.setattr("hearth.app.library.local.Library.list", broken)
    result = hearth("list")
    log = home / "log" / "hearth.log"
    assert result.code == 1
    assert "ZeroDivisionError: oh no" in result.err and str(log) in result.err
    assert "Traceback" not in result.err
    assert "Traceback" in log.read_text()
    monkeypatch.setenv("HEARTH_DEBUG", "1")
    assert "Traceback" in hearth("list").err


def test_a_broken_pipe_ends_quietly(home) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "hearth.app.cli.main", "list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) in (0, 1)
    assert said == b""


def test_every_error_has_an_exit_code_of_the_enum() -> None:
    codes = {code.value for code in ExitCode}
    for name in errors.__all__:
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, errors.HearthError):
            assert kind.exit_code in codes, name
    assert errors.ModelNotFound.exit_code == ExitCode.MODEL_NOT_FOUND
    assert errors.DoesNotFit.exit_code == ExitCode.DOES_NOT_FIT
    assert errors.SettingsError.exit_code == ExitCode.USAGE


def test_show_of_an_encoder_says_what_it_is_for(hearth, home) -> None:
    tiny_bert(home / "data" / "models" / "bge.gguf", positions=64)
    tiny_jina_reranker(home / "data" / "models" / "jina.gguf")
    shown = hearth("show", "bge", "--json").json
    assert shown["purpose"] == "embeddings" and set(shown["kv_bytes_per_token"].values()) == {0}
    assert shown["backend"]["runner"] == "llamacpp"
    assert hearth("show", "jina", "--json").json["purpose"] == "reranking"
    assert hearth("show", "tiny", "--json").json["purpose"] == "text"
    text = hearth("show", "jina").out
    assert "it is for reranking" in text and "--raw" not in text

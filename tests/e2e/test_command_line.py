"""The `hearth` command for real, with the bundled model: what a person types and sees."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from commands import hearth
from hosts import gone, processes_in


@pytest.fixture(scope="module")
def environ():
    """A home of its own; its host and workers are stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="hearth-") as home:
        environ = {**os.environ, "HEARTH_HOME": home}
        yield environ
        hosts = processes_in(Path(home), "hearth.backends.host")
        for host in hosts:
            host.terminate()
        gone(hosts)


def test_piped_in_it_answers_and_exits(environ):
    done = hearth(environ, stdin="How do I download a model?\n")
    assert done.returncode == 0, done.stderr
    assert "hearth pull" in done.stdout


def test_one_shot_streamed_and_whole_agree(environ):
    arguments = ("run", "guide", "What", "is", "a", "token?", "--temperature", "0")
    streamed = hearth(environ, *arguments)
    whole = json.loads(hearth(environ, *arguments, "--json").stdout)
    assert streamed.stdout.strip() == whole["text"].strip() != ""
    assert whole["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] > 3
    assert whole["timings"]["ttft_s"] > 0


def test_the_same_seed_the_same_text(environ):
    arguments = ("run", "guide", "Tell me a story", "--seed", "7", "--temperature", "1")
    texts = {hearth(environ, *arguments).stdout for _ in range(2)}
    assert len(texts) == 1
    other = hearth(environ, "run", "guide", "Tell me a story", "--seed", "8", "--temperature", "1")
    assert other.stdout not in texts


def test_raw_completes_without_a_template(environ):
    done = hearth(environ, "run", "guide", "--raw", "Once upon a", "--max-tokens", "8")
    assert done.returncode == 0 and done.stdout.strip()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "guide", "hi", "--ctx", "99999999"), None, "context"),
        (("run", "guide", "x " * 3000), 1, "2048"),
    ],
)
def test_mistakes_are_named_with_an_exit_code(environ, arguments, code, words):
    done = hearth(environ, *arguments)
    assert done.returncode == code if code is not None else done.returncode != 0
    assert words.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_list_show_and_doctor_speak_json(environ):
    listed = json.loads(hearth(environ, "list", "--json").stdout)
    assert "guide" in json.dumps(listed)
    shown = json.loads(hearth(environ, "show", "guide", "--json").stdout)
    assert shown["architecture"] == "llama"
    checked = hearth(environ, "doctor", "--json")
    assert json.loads(checked.stdout)

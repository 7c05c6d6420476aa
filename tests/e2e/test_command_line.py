"""The `hearth` command for real, with the bundled model: what a person types and sees."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from hosts import gone


@pytest.fixture(scope="module")
def environ():
    """A home of its own; its host and workers are stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="hearth-") as home:
        environ = {**os.environ, "HEARTH_HOME": home}
        yield environ
        _stop_hosts(Path(home))


def _stop_hosts(home):
    ours = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            words = process.info["cmdline"] or []
            if "hearth.backends.host" in words and any(
                word.startswith(str(home)) for word in words
            ):
                process.terminate()
                ours.append(process)
    gone(ours)


def hearth(environ, *arguments, **options):
    command = [sys.executable, "-m", "hearth.app.cli.main", *arguments]
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=90, **options
    )


def test_piped_in_it_answers_and_exits(environ):
    done = hearth(environ, input="How do I download a model?\n")
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


def test_a_stop_string_and_max_tokens(environ):
    arguments = ("run", "guide", "Count from 1 to 10", "--temperature", "0")
    full = hearth(environ, *arguments).stdout
    assert "5" in full
    cut = hearth(environ, *arguments, "--stop", "5").stdout
    assert full.startswith(cut.rstrip("\n")) and "5" not in cut
    few = json.loads(hearth(environ, *arguments, "--max-tokens", "3", "--json").stdout)
    assert few["usage"]["completion_tokens"] == 3 and few["finish_reason"] == "length"


def test_raw_completes_without_a_template(environ):
    done = hearth(environ, "run", "guide", "--raw", "Once upon a", "--max-tokens", "8")
    assert done.returncode == 0 and done.stdout.strip()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "nobody", "hi"), 3, "nobody"),
        (("run", "guide", "hi", "--top-p", "7"), 2, "top-p"),
        (("run", "guide", "hi", "--ctx", "99999999"), None, "context"),
        (("run", "guide", "x " * 3000), 1, "2048"),
        (("frobnicate",), 2, "frobnicate"),
        (("pull", "nobody"), 3, "catalogue"),
        (("--offline", "pull", "nobody/nothing"), 5, "offline"),
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

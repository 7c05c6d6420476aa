"""Examples of how to ask the endpoint: they are complete, and say no key."""

import ast
import json
import shlex

import pytest

from hearth.app.clients import curl, key_place, python

URL = "http://127.0.0.1:4242/v1"
KEY = "sesame-open"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "it's a key"
    path.write_text(f"{KEY}\n")
    path.chmod(0o600)
    return path


def test_without_a_key_none_is_sent(file):
    place = key_place(file, asks=False, environ={})
    assert not place.asked and place.read() == ""
    words = shlex.split(curl(URL, "guide", place).replace("\\\n", ""))
    assert words[:2] == ["curl", f"{URL}/chat/completions"]
    assert not any("Authorization" in word for word in words)
    assert json.loads(words[words.index("-d") + 1])["model"] == "guide"


def test_the_kept_key_is_read_from_its_file(file):
    place = key_place(file, asks=True, environ={})
    assert place.asked and place.read() == KEY
    command, code = curl(URL, "guide", place), python(URL, "guide", place)
    assert f"$(cat {shlex.quote(str(file))})" in command and KEY not in command + code
    call = next(
        node
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.keyword) and node.arg == "api_key"
    )
    assert eval(compile(ast.Expression(call.value), "", "eval")) == KEY  # noqa: S307 - our own


def test_the_key_of_the_environment_comes_first(file):
    place = key_place(file, asks=True, environ={"HEARTH_API_KEY": "other"})
    assert place.read() == "other"
    assert "$HEARTH_API_KEY" in curl(URL, "guide", place)
    code = python(URL, "guide", place)
    assert 'os.environ["HEARTH_API_KEY"]' in code and code.startswith("import os")


def test_one_that_is_not_made_yet_is_empty(tmp_path):
    assert key_place(tmp_path / "none", asks=True, environ={}).read() == ""


def test_names_of_models_are_quoted(file):
    place = key_place(file, asks=False, environ={})
    name = 'it\'s "a" model'
    words = shlex.split(curl(URL, name, place).replace("\\\n", ""))
    assert json.loads(words[words.index("-d") + 1])["model"] == name
    ast.parse(python(URL, name, place))

"""`--backend native` as its users meet it: the real `openai` client and the command line, over a
GGUF and over a folder of safetensors.
"""

from __future__ import annotations

import json
import math
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from commands import hearth
from model_folders import write_folder
from served import Served, served
from tiny_checkpoints import VOCABULARY
from tiny_folders import add_vocabulary, tiny_folder

FOLDER = "Tiny-Qwen3"
UNNAMED = VOCABULARY - 1
NATIVE = ("--backend", "native", "--threads", "1")
STORY = [{"role": "user", "content": "Tell me a story about a fox."}]
SCHEMA = {
    "type": "object",
    "properties": {"fox": {"type": "boolean"}, "den": {"enum": ["north", "south"]}},
    "required": ["fox", "den"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with random weights that transformers wrote, and two that are refused."""
    home = tmp_path_factory.mktemp("models")
    stranger = write_folder(home / "Stranger", model_type="mamba3", architectures=["Mamba3"])
    add_vocabulary(stranger)
    pickled = write_folder(home / "Pickled")
    add_vocabulary(pickled)
    (pickled / "model.safetensors").write_bytes(pickle.dumps({"weight": [1.0, 2.0]}))
    return {FOLDER: tiny_folder("qwen3", home / FOLDER), "Stranger": stranger, "Pickled": pickled}


@pytest.fixture(scope="module")
def server(models: dict[str, Path]) -> Iterator[Served]:
    with served(models=models, options=NATIVE) as one:
        yield one


@pytest.fixture(params=["guide", FOLDER])
def model(request: pytest.FixtureRequest) -> str:
    """A GGUF, or a folder of safetensors."""
    return str(request.param)


def ask(server: Served, model: str, messages: Any = STORY, **more: Any) -> Any:
    return server.openai.chat.completions.create(model=model, messages=messages, **more)


def test_a_chat_streamed_and_whole(server: Served, model: str) -> None:
    given: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
    whole = ask(server, model, **given)
    text, reasons, usage = "", [], None
    for chunk in ask(server, model, **given, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
        usage = chunk.usage or usage
    [choice] = whole.choices
    assert text == choice.message.content and len(text) > 10
    assert reasons == [choice.finish_reason] == ["length"]
    assert usage is not None and usage.completion_tokens == whole.usage.completion_tokens == 24
    assert usage.prompt_tokens == whole.usage.prompt_tokens > 3


def test_the_guide_knows_what_a_token_is(server: Served) -> None:
    question = [{"role": "user", "content": "What is a token?"}]
    [choice] = ask(server, "guide", question, temperature=0).choices
    assert "token" in choice.message.content and choice.finish_reason == "stop"


def test_log_probabilities(server: Served, model: str) -> None:
    given: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "logprobs": True}
    [choice] = ask(server, model, **given, top_logprobs=3).choices
    tokens = choice.logprobs.content
    assert len(tokens) == 6
    for token in tokens:
        assert token.bytes in (None, list(token.token.encode())), "none of half a character"
        assert len(token.top_logprobs) == 3
        likely = [other.logprob for other in token.top_logprobs]
        assert likely == sorted(likely, reverse=True) and sum(map(math.exp, likely)) < 1.001
        assert token.logprob == likely[0], "greedy takes the likeliest"


def test_rows_of_the_output_that_no_token_names_are_said_as_nothing(server: Served) -> None:
    """As they are with Qwen3, whose output has 267 rows more than its vocabulary has tokens."""
    given: dict[str, Any] = {"logit_bias": {str(UNNAMED): 100}, "temperature": 0, "max_tokens": 5}
    [choice] = ask(server, FOLDER, **given, logprobs=True, top_logprobs=2).choices
    assert choice.message.content == "" and choice.finish_reason == "length"
    assert [token.token for token in choice.logprobs.content] == [""] * 5


def test_an_answer_by_a_schema(server: Served, model: str) -> None:
    kind = {"type": "json_schema", "json_schema": {"name": "fox", "schema": SCHEMA, "strict": True}}
    [choice] = ask(server, model, temperature=1, seed=1, response_format=kind).choices
    answer = json.loads(choice.message.content)
    assert choice.finish_reason == "stop"
    assert set(answer) == {"fox", "den"}
    assert isinstance(answer["fox"], bool) and answer["den"] in ("north", "south")


def test_embeddings(server: Served, model: str) -> None:
    texts = ["a fox", "the moon and the stars", "a fox"]
    found = server.openai.embeddings.create(model=model, input=texts)
    assert [each.index for each in found.data] == [0, 1, 2] and found.usage.prompt_tokens > 5
    vectors = [each.embedding for each in found.data]
    assert all(math.isclose(sum(x * x for x in v), 1.0, abs_tol=1e-4) for v in vectors)
    assert vectors[0] == pytest.approx(vectors[2], abs=1e-5)
    assert vectors[0] != pytest.approx(vectors[1], abs=1e-2)


REFUSED = {"Stranger": "mamba3", "Pickled": "model.safetensors is damaged.*a pickle"}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_is_refused_by_its_name(
    server: Served, models: dict[str, Path], name: str
) -> None:
    said = re.compile(REFUSED[name], re.DOTALL)
    with pytest.raises(openai.UnprocessableEntityError, match=said):
        ask(server, name)
    done = hearth(server.environ, "run", str(models[name]), "hello", *NATIVE)
    assert done.returncode != 0 and not done.stdout
    assert said.search(done.stderr) and "Traceback" not in done.stderr


def test_the_command_line_says_the_same(
    server: Served, models: dict[str, Path], model: str
) -> None:
    """It asks the model that is loaded already, and that is our own runner's."""
    name = str(models[FOLDER]) if model == FOLDER else model
    given = ("--temperature", "0", "--max-tokens", "24")
    done = hearth(server.environ, "run", name, STORY[0]["content"], *NATIVE, *given)
    assert done.returncode == 0, done.stderr
    endpoint = ask(server, model, temperature=0, max_tokens=24).choices[0].message.content
    assert done.stdout.strip() == endpoint.strip()
    listed = json.loads(hearth(server.environ, "ps", "--json").stdout)["workers"]
    assert {worker["name"]: worker["info"]["backend"] for worker in listed} == {
        "guide": "native",
        FOLDER: "native",
    }

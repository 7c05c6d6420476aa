"""`/v1/completions`: prompts in all four forms, echo, log probabilities, streams."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import asdict

import pytest
from openai.types import Completion

from asgi import JSON, exchange
from endpoints import ONCE
from fake_host import FakeBackend, FakeHost
from hearth.app.server.answers import text_logprobs
from hearth.backends.contract.events import Prompt, TokenLogprob
from hearth.backends.contract.requests import BeamSearch
from hearth.backends.errors import WorkerDied

START = {"prompt_tokens": 7}


def says(text):
    return [START, {"text": text}, {"finish": "stop"}]


def test_a_whole_answer_is_what_the_client_expects(endpoint) -> None:
    made = endpoint(says(" upon a time"))
    answer = Completion.model_validate(made.complete().json, strict=True)
    assert (answer.object, answer.choices[0].text) == ("text_completion", " upon a time")
    assert answer.usage.total_tokens == 8
    assert made.asked["text"] == "Once" and made.asked["messages"] is None
    assert made.asked["max_tokens"] == 16


def test_the_settings_say_how_long_a_text_becomes(endpoint) -> None:
    made = endpoint(flags={"max_tokens": 99})
    made.complete()
    assert made.asked["max_tokens"] == 99


@pytest.mark.parametrize(
    ("prompt", "reached"),
    [
        ("Once", [("Once", None)]),
        (["Once", "Twice"], [("Once", None), ("Twice", None)]),
        ([1, 2], [(None, (1, 2))]),
        ([[1, 2], [3]], [(None, (1, 2)), (None, (3,))]),
        (["Once", [3]], [("Once", None), (None, (3,))]),
    ],
    ids=str,
)
def test_prompts_in_every_form(endpoint, prompt, reached) -> None:
    made = endpoint(*[says("!")] * len(reached))
    reply = made.complete(prompt=prompt)
    assert [choice["index"] for choice in reply.json["choices"]] == list(range(len(reached)))
    found = [(request["text"], request["token_ids"]) for request in made.host.requests]
    assert sorted(map(str, found)) == sorted(map(str, reached))
    assert reply.json["usage"]["total_tokens"] == 8 * len(reached)


def test_choices_of_several_prompts_are_numbered_through(endpoint) -> None:
    def two(text):
        return [
            START,
            {"text": text, "index": 0},
            {"text": text.upper(), "index": 1},
            {"index": 1, "finish": "length"},
            {"index": 0, "finish": "stop"},
            {"finish": "stop"},
        ]

    made = endpoint(two("a"), two("b"), two("a"), two("b"))
    whole = made.complete(prompt=["p", "q"], n=2, best_of=2).json["choices"]
    assert [choice["text"] for choice in whole] == ["a", "A", "b", "B"]
    assert [choice["finish_reason"] for choice in whole] == ["stop", "length"] * 2
    *events, done = made.complete(prompt=["p", "q"], n=2, stream=True).events
    texts, reasons = dict.fromkeys(range(4), ""), dict.fromkeys(range(4))
    for event in events:
        [choice] = event["choices"]
        texts[choice["index"]] += choice["text"]
        reasons[choice["index"]] = choice["finish_reason"]
    assert list(texts.values()) == ["a", "A", "b", "B"] and done == "[DONE]"
    assert list(reasons.values()) == ["stop", "length"] * 2


def test_beam_search_is_passed_on_with_its_parameters(endpoint) -> None:
    made = endpoint(says("!"), says("!"), says("!"))
    made.complete(use_beam_search=True)
    assert made.asked["beams"] == asdict(BeamSearch(4))
    made.complete(use_beam_search=True, beam_width=8, length_penalty=0.5, early_stopping="never")
    assert made.asked["beams"] == asdict(BeamSearch(8, 0.5, "never"))
    made.complete(use_beam_search=False)
    assert made.asked["beams"] is None


def test_the_prompt_is_echoed(endpoint) -> None:
    made = endpoint(says("!"), says("!"), says("!"))
    assert made.complete(echo=True).json["choices"][0]["text"] == "Once!"
    assert made.complete(echo=True, prompt=[5, 6]).json["choices"][0]["text"] == "<5><6>!"
    events = made.complete(echo=True, stream=True).events
    assert events[0]["choices"][0]["text"] == "Once"


def test_log_probabilities(endpoint) -> None:
    steps = [START, {"text": "ab"}, {"text": "c"}, {"finish": "stop"}]
    made = endpoint(steps, steps)
    found = made.complete(logprobs=1).json["choices"][0]["logprobs"]
    assert found == {
        "tokens": ["ab", "c"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"ab": -0.5}, {"c": -0.5}],
        "text_offset": [0, 2],
    }
    events = made.complete(logprobs=0, stream=True).events[:-1]
    chunks = [event["choices"][0]["logprobs"] for event in events]
    assert [chunk["text_offset"] for chunk in chunks if chunk] == [[0], [2]]


def test_usage_of_a_stream(endpoint) -> None:
    made = endpoint(says("a"), says("b"))
    reply = made.complete(prompt=["p", "q"], stream=True, stream_options={"include_usage": True})
    *events, usage, done = reply.events
    assert usage["usage"]["total_tokens"] == 16 and usage["choices"] == []
    assert all(event["usage"] is None for event in events) and done == "[DONE]"


def test_one_prompt_that_fails_fails_the_request(endpoint) -> None:
    failed = [START, {"error": {"code": "worker_died", "message": "dead"}}]
    made = endpoint([START, {"wait": True}], failed)
    reply = made.complete(prompt=["p", "q"])
    assert reply.status == 503 and made.host.cancelled == 1


def test_an_empty_answer_is_never_the_best_of_several(endpoint) -> None:
    """It has no token whose probability could be compared."""
    steps = [START, {"text": "a", "index": 0}]
    ends = [{"finish": "stop", "index": 0}, {"finish": "stop", "index": 1}, {"finish": "stop"}]
    reply = endpoint([*steps, *ends]).complete(best_of=2)
    assert [choice["text"] for choice in reply.json["choices"]] == ["a"]


def test_every_token_of_an_echo_has_a_log_probability(endpoint) -> None:
    made = endpoint(says("!"), says("!"))
    found = made.complete(echo=True, logprobs=0).json["choices"][0]["logprobs"]
    assert found["tokens"] == ["O", "n", "c", "e", "!"]
    assert found["token_logprobs"][0] is None and None not in found["token_logprobs"][1:]
    assert found["top_logprobs"] == [None, {}, {}, {}, {}]
    assert found["text_offset"] == [0, 1, 2, 3, 4]
    events = made.complete(echo=True, logprobs=0, stream=True).events[:-1]
    chunks = [event["choices"][0]["logprobs"] for event in events]
    assert [chunk["text_offset"] for chunk in chunks if chunk] == [[0, 1, 2, 3], [4]]


def test_a_token_that_stands_before_the_text_moves_no_offset(endpoint) -> None:
    """For example a token that begins every prompt, and is not a part of the text."""

    class Beginning(FakeHost):
        def backend(self, spec, session=""):
            return BeginningBackend(self, spec)

    class BeginningBackend(FakeBackend):
        async def render(self, request):
            prompt = await super().render(request)
            return Prompt(prompt.text, (5, *prompt.ids))

    made = endpoint(says("!"), says("!"), host_kind=Beginning)
    found = made.complete(echo=True, logprobs=1).json["choices"][0]
    assert found["logprobs"]["tokens"] == ["<5>", "O", "n", "c", "e", "!"]
    assert found["logprobs"]["text_offset"] == [0, 0, 1, 2, 3, 4] and found["text"] == "Once!"


def test_of_two_tokens_with_one_text_the_likelier_is_told() -> None:
    token = TokenLogprob(1, "a", -0.5, ((1, "a", -0.5), (2, "\ufffd", -1.0), (3, "\ufffd", -2.0)))
    assert text_logprobs([token], 0)["top_logprobs"] == [{"a": -0.5, "\ufffd": -1.0}]


def test_several_prompts_never_need_more_room_than_the_model_has(endpoint) -> None:
    """Each choice takes a place: if all were sent at once, they would be refused because of each
    other.
    """
    made = endpoint(*[[START, {"wait": True}]] * 4, flags={"max_sessions": 8})

    async def leave_when_two_wait():
        leave = asyncio.Event()
        waiting = itertools.count(1)
        made.host.on_wait = lambda: leave.set() if next(waiting) == 2 else None
        body = json.dumps({**ONCE, "prompt": ["a", "b", "c", "d"], "n": 4}).encode()
        await exchange(made.app, "POST", "/v1/completions", body, JSON, leave=leave)

    asyncio.run(leave_when_two_wait())
    assert len(made.host.requests) == 2 and made.host.cancelled == 2


def test_an_echo_that_fails_ends_the_others(endpoint) -> None:
    scored = []

    class Scoring(FakeHost):
        def backend(self, spec, session=""):
            return ScoringBackend(self, spec)

    class ScoringBackend(FakeBackend):
        async def score(self, ids, *, top=0, session=""):
            scored.append(len(ids))
            if len(ids) == 2:
                raise WorkerDied("It died.")
            try:
                await asyncio.Event().wait()
            finally:
                scored.append(-len(ids))

    made = endpoint(host_kind=Scoring)
    body = json.dumps({**ONCE, "prompt": ["abc", "ab"], "echo": True, "logprobs": 1}).encode()

    async def ask():
        reply = await exchange(made.app, "POST", "/v1/completions", body, JSON)
        return reply, list(scored)

    reply, seen = asyncio.run(ask())
    assert reply.status == 503 and seen == [3, 2, -3]

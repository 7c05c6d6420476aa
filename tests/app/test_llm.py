"""The Python API over a real host and the bundled model."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hearth.app
from hearth.app import LLM, AsyncLLM, Constraint, HearthError, Message, SamplingParams
from hearth.app.host_connection import HostConnection
from hearth.app.paths import find_paths
from hearth.backends.contract import HostStats

GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("guide") as opened:
        yield opened


def test_a_batch_is_in_the_order_of_its_prompts_and_equals_single_calls(llm: LLM) -> None:
    prompts = [f"How do I download model {number}?" for number in range(40)]
    batch = llm.generate(prompts, GREEDY, max_tokens=8, ignore_eos=True)
    assert [each.usage.completion_tokens for each in batch] == [8] * 40
    for index in (0, 17, 39):
        one = llm.generate(prompts[index], GREEDY, max_tokens=8, ignore_eos=True)
        assert (one.text, one.usage.prompt_tokens) == (
            batch[index].text,
            batch[index].usage.prompt_tokens,
        )
    assert llm.generate([]) == [] and llm.chat([]) == []


def test_a_chat_takes_texts_dictionaries_and_messages(llm: LLM) -> None:
    text = "How do I download a model?"
    one = llm.chat(text, GREEDY, max_tokens=16)
    assert one.text and one.finish_reason in ("stop", "length")
    assert one.usage.prompt_tokens > 0 and len(one.token_ids) <= 16
    chats: list[list[Message | dict[str, str]]]
    chats = [[{"role": "user", "content": text}], [Message("user", text)]]
    assert [each.text for each in llm.chat(chats, GREEDY, max_tokens=16)] == [one.text] * 2
    assert llm.chat([text], GREEDY, max_tokens=16)[0].text == one.text


def test_options_are_those_of_a_request(llm: LLM) -> None:
    chosen = llm.chat("Yes or no?", constraint=Constraint("choice", json.dumps(["yes", "no"])))
    assert chosen.text in ("yes", "no")
    stopped = llm.generate("a b c", GREEDY, max_tokens=64, stop="e", ignore_eos=True)
    assert "e" not in stopped.text
    probable = llm.generate("a", SamplingParams(logprobs=2), max_tokens=3)
    assert all(len(each.top) == 2 for each in probable.logprobs)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda llm: llm.generate("a", max_token=3), "max_tokens"),
        (lambda llm: llm.generate("a", SamplingParams(top_p=2)), "top_p"),
        (lambda llm: llm.generate(["a", 3]), r"prompts\[1\]"),
        (lambda llm: llm.chat([{"role": "user", "text": "a"}]), r"messages\[0\]"),
        (lambda llm: llm.chat([{"content": "a"}]), "role"),
        (lambda llm: LLM("guide", contxt=3), "context"),
        (lambda llm: LLM("no-such-model"), "no-such-model"),
    ],
)
def test_wrong_calls_are_refused_with_a_hint(llm: LLM, call: object, words: str) -> None:
    with pytest.raises(HearthError, match=words) as caught:
        call(llm)  # type: ignore[operator]
    assert caught.value.hint or "Did you mean" in caught.value.message


def test_the_prompt_of_a_batch_that_fails_is_named(llm: LLM) -> None:
    with pytest.raises(HearthError, match="too long") as caught:
        llm.generate(["a", "word " * 100_000, "b"], max_tokens=2)
    assert caught.value.data["index"] == 1


def test_a_stream_gives_the_same_text(llm: LLM) -> None:
    whole = llm.generate("Once", GREEDY, max_tokens=24)
    with llm.stream("Once", GREEDY, raw=True, max_tokens=24) as stream:
        pieces = list(stream)
    assert len(pieces) > 1 and "".join(pieces) == whole.text
    assert stream.completion.finish_reason == whole.finish_reason


def running() -> int:
    async def count() -> int:
        async with HostConnection(find_paths().host_place(), 10.0) as connection:
            stats: HostStats | None = await connection.stats()
        assert stats is not None
        return sum(len(w.engine.requests) for w in stats.workers if w.engine is not None)

    return asyncio.run(count())


def test_streams_that_are_dropped_leave_no_request(llm: LLM) -> None:
    streams = [llm.stream("Once", raw=True, ignore_eos=True) for _ in range(6)]
    lengths = [len(next(stream)) for stream in streams]
    assert all(lengths) and running() > 0
    del streams
    gc.collect()
    began = time.monotonic()
    while running() and time.monotonic() < began + 10:
        time.sleep(0.02)
    assert time.monotonic() - began < 2


def test_vectors_and_scores(llm: LLM) -> None:
    one = llm.embed("a text")
    two = llm.embed(["a text", "another"])
    assert two[0] == pytest.approx(one) and len(two) == 2
    assert sum(x * x for x in one) == pytest.approx(1, abs=1e-3)
    scores = llm.score(["How do I download a model?", "b c d"], top=2)
    assert all(value <= 0 for each in scores for value in each.logprobs)
    assert llm.score("b c d").logprobs == pytest.approx(scores[1].logprobs, abs=1e-3)


def test_inside_an_event_loop_the_other_class_is_named_and_works(llm: LLM) -> None:
    async def main() -> list[str]:
        with pytest.raises(HearthError, match="AsyncLLM"):
            llm.generate("Once")
        async with AsyncLLM("guide") as other:
            texts = await asyncio.gather(*(other.generate("Once", GREEDY, max_tokens=4),) * 1)
            text = ""
            async for piece in other.stream("Once", GREEDY, raw=True, max_tokens=4):
                text += piece
            return [texts[0].text, text]

    one, two = asyncio.run(main())
    assert one == two == asyncio.run(main())[0]


def test_one_object_works_in_two_event_loops() -> None:
    llm = AsyncLLM("guide")

    async def main() -> str:
        return (await llm.generate("Once", GREEDY, max_tokens=4)).text

    assert asyncio.run(main()) == asyncio.run(main())


def test_a_closed_object_says_so() -> None:
    llm = LLM("guide")
    llm.close()
    llm.close()
    with pytest.raises(HearthError, match="closed"):
        llm.generate("Once")


def test_a_script_that_closes_nothing_ends_quietly() -> None:
    script = (
        "from hearth.app import LLM; llm = LLM('guide'); s = llm.stream('Hello'); print(next(s))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_import_is_light() -> None:
    heavy = ("textual", "torch", "llama_cpp", "numpy", "huggingface_hub", "asyncio", "msgpack")
    script = f"import sys, hearth.app; print([n for n in {heavy} if n in sys.modules])"
    script += f"; hearth.app.LLM; print([n for n in {heavy[:5]} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]
    with pytest.raises(AttributeError):
        hearth.app.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_the_blocks_of_the_page_run(tmp_path: Path) -> None:
    page = Path(__file__).parents[2].joinpath("docs", "python.md").read_text()
    blocks = [part.split("\n```")[0] for part in page.split("```python\n")[1:]]
    assert len(blocks) > 5
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks).replace('"smollm2"', '"guide"'))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "model_not_found" in done.stdout

"""A server that answers every request with the same words, like OpenAI's."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal

import fake_remote
from fake_remote import CHAT, COMPLETIONS, DONE, FakeRemote, Reply, answer, data, delta

Fault = Literal["", "cut", "error", "silent end", "noise"]


def serving(
    pieces: int = 3,
    usage: int | None = None,
    status: int = 200,
    fault: Fault = "",
    models: tuple[str, ...] = ("fake-model",),
) -> AbstractContextManager[FakeRemote]:
    """The server, until the block ends.

    Args:
        pieces: pieces of text of each answer.
        usage: number to report as `completion_tokens` in a last chunk; None: no such chunk.
        status: of each answer; any status but 200 comes with an error object.
        fault: "cut" ends the answer after the text, "error" sends an error object there, "silent
            end" sends [DONE] without a finish_reason, "noise" sends a chunk that is not JSON.
    """
    listed = tuple({"id": name} for name in models)
    if status != 200:
        refusal = answer({"error": {"message": "no such thing", "code": "nope"}}, status)
        return fake_remote.serving(refusal, models=listed)
    details = {"cached_tokens": 16}
    counted = (
        () if usage is None else (fake_remote.usage(40, usage, prompt_tokens_details=details),)
    )
    ends = {
        "": (delta(reason="length"), *counted, DONE),
        "cut": (),
        "error": (data({"error": {"message": "it fell over"}}),),
        "silent end": (*counted, DONE),
        "noise": (b"data: {nonsense\n\n",),
    }
    role, word = delta(role="assistant", content=""), data({"choices": [{"text": "word "}]})
    begins = {CHAT: (role, *[delta(content="word ")] * pieces), COMPLETIONS: (word,) * pieces}
    replies = {
        path: Reply((b": hello\n\n", *begin, *ends[fault])) for path, begin in begins.items()
    }
    return fake_remote.serving(replies, models=listed)

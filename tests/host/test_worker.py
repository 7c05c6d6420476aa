"""Inside a worker: answers that cannot be sent, cancelling before a request runs, orphans."""

import io
import os
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial

import msgspec
import pytest

from hearth.backends.contract.events import Failed, Finished, Prompt
from hearth.backends.contract.loaded import EngineStats, RequestStats
from hearth.backends.contract.messages import Message
from hearth.backends.contract.requests import Constraint, Request, Tool
from hearth.backends.contract.wire import (
    Cancel,
    ClearCache,
    Detokenize,
    Embed,
    Frame,
    Generate,
    GetEngineStats,
    Ids,
    Rank,
    Render,
    Score,
    Text,
    Tokenize,
    encode,
    read_frame,
)
from hearth.backends.errors import TemplateError
from hearth.backends.machine.process import die_with_parent
from hearth.backends.worker.worker import Outbox, RequestHandler


def test_an_answer_that_cannot_be_sent_fails_and_the_next_one_is_sent():
    reading, writing = os.pipe()
    outbox = Outbox(os.fdopen(writing, "wb"))
    outbox.put(1, Text("\ud800"))
    outbox.put(2, Text("fine"))
    outbox.close()
    with os.fdopen(reading, "rb") as answers:
        first, second = read_frame(answers), read_frame(answers)
    assert first.id == 1 and isinstance(first.body, Failed)
    assert second == Frame(2, Text("fine"))


PROMPT = Prompt("prompt", (1, 2), ("a notice",))
STATS = EngineStats(running=1, waiting=2, pool_tokens=64, kept_tokens=20)


class Notes:
    """Stands for engine and outbox: what was submitted, cancelled and said."""

    def __init__(self):
        self.submitted, self.cancelled, self.said = [], [], []

    def submit(self, *work):
        self.submitted.append(work)

    def cancel(self, ident):
        self.cancelled.append(ident)

    def stats(self):
        return STATS

    def clear_cache(self, done):
        done(replace(STATS, kept_tokens=0))

    def put(self, ident, body):
        self.said.append((ident, body))


class SlowPreparer:
    """Prepares when it is let."""

    def __init__(self, error=None):
        self.begun, self.let = threading.Event(), threading.Event()
        self.error = error

    def _prepare(self, *work):
        self.begun.set()
        assert self.let.wait(10)
        if self.error is not None:
            raise self.error
        return work

    def generations(self, ident, request, emit, clock):
        return self._prepare(*((ident, index) for index in range(request.n)))

    def scoring(self, ident, call, emit, clock, session):
        return self._prepare(ident, call)[1]

    def embedding(self, ident, call, emit, session):
        return self._prepare(ident, call)[1]

    def ranking(self, ident, call, emit, session):
        return self._prepare(ident, call)[1]

    def render(self, request):
        return self._prepare(PROMPT)[0]


class Words:
    """A tokenizer."""

    def encode(self, text, *, special, add_bos, add_eos):
        return [len(word) for word in text.split()]

    def decode(self, ids):
        return " ".join("x" * ident for ident in ids)


GENERATE = Generate(Request(text="x"))
SCORE = Score((1, 2))
EMBED = Embed(("a",), "mean")
RANK = Rank("a", ("b",))
RENDER = Render(Request(messages=(Message("user", "x"),)))


def wait_for(pool):
    """Wait until all calls of the session "" are prepared. A session has half of the threads."""
    barrier = threading.Barrier(pool._most_of_one)
    for job in [pool.submit("", partial(barrier.wait, 10)) for _ in range(barrier.parties)]:
        job.result(10)


def handler_of(notes, preparer):
    return RequestHandler(notes, preparer, Words(), notes)


def prepared(call, error=None):
    """A handler that has prepared `call` as call 7, and its notes."""
    notes, preparer = Notes(), SlowPreparer(error)
    preparer.let.set()
    handler = handler_of(notes, preparer)
    handler.take(Frame(7, call))
    wait_for(handler._pool)
    return handler, notes


@pytest.mark.parametrize("error", [None, TemplateError("no")])
@pytest.mark.parametrize(
    "call", [GENERATE, SCORE, EMBED, RANK, RENDER], ids=lambda c: type(c).__name__
)
def test_a_call_that_is_cancelled_while_it_is_prepared_is_over_at_once(call, error):
    notes, preparer = Notes(), SlowPreparer(error)
    handler = handler_of(notes, preparer)
    handler.take(Frame(7, call))
    assert preparer.begun.wait(10)
    handler.take(Frame(7, Cancel()))
    assert notes.said == [(7, Finished("cancelled"))]
    preparer.let.set()
    wait_for(handler._pool)
    assert notes.said == [(7, Finished("cancelled"))]
    assert notes.submitted == [] and notes.cancelled == []


@pytest.mark.parametrize(
    ("call", "work"),
    [
        (GENERATE, ((7, 0),)),
        (Generate(Request(text="x", n=3)), ((7, 0), (7, 1), (7, 2))),
        (SCORE, (SCORE,)),
        (EMBED, (EMBED,)),
        (RANK, (RANK,)),
    ],
    ids=["one", "three choices", "score", "embed", "rank"],
)
def test_a_call_that_was_prepared_is_the_engine_s_as_a_whole(call, work):
    handler, notes = prepared(call)
    handler.take(Frame(7, Cancel()))
    assert notes.submitted == [work] and notes.cancelled == [7] and notes.said == []


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (Tokenize("a bc", False), Ids((1, 2))),
        (Detokenize((1, 2)), Text("x xx")),
        (RENDER, PROMPT),
        (ClearCache(), replace(STATS, kept_tokens=0)),
    ],
    ids=lambda part: type(part).__name__,
)
def test_calls_that_need_no_sequence_are_answered(call, answer):
    _, notes = prepared(call)
    assert notes.said == [(7, answer)] and notes.submitted == []


@pytest.mark.parametrize("call", [GENERATE, SCORE, EMBED, RANK], ids=lambda c: type(c).__name__)
def test_a_call_that_is_refused_is_not_the_engine_s(call):
    _, notes = prepared(call, TemplateError("no"))
    [(ident, failed)] = notes.said
    assert ident == 7 and failed.error.code == TemplateError.code
    assert notes.submitted == []


def test_a_library_that_panics_is_answered_for():
    class Panic(BaseException):
        pass

    _, notes = prepared(GENERATE, Panic("index out of bounds"))
    [(ident, failed)] = notes.said
    assert ident == 7 and failed.error.code == "internal_error"


def test_stats_are_answered_at_once_and_name_what_is_prepared():
    notes, preparer = Notes(), SlowPreparer()
    handler = handler_of(notes, preparer)
    handler.take(Frame(7, GENERATE, session="me"))
    handler.take(Frame(8, SCORE))
    handler.take(Frame(9, GetEngineStats()))
    coming = (RequestStats(7, "me", "queued"), RequestStats(8, "", "queued"))
    assert notes.said == [(9, replace(STATS, waiting=STATS.waiting + 2, requests=coming))]
    preparer.let.set()


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
@pytest.mark.parametrize(("parent", "said"), [("os.getppid()", "alive"), ("os.getpid()", "")])
def test_a_process_whose_parent_is_gone_leaves_at_its_first_instruction(parent, said):
    code = f"import os; from {die_with_parent.__module__} import die_with_parent as tie\n"
    code += f"tie({parent}); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == said


@pytest.mark.parametrize(
    "hard",
    [
        Request(text="x", constraint=Constraint("regex", "x+")),
        Request(messages=(Message("user", "x"),), tools=(Tool("f"),), tool_choice="required"),
        Request(messages=(Message("user", "x"),), tools=(Tool("f", strict=True),)),
    ],
)
def test_nobody_waits_for_the_grammars_of_others(hard):
    class Patient(SlowPreparer):
        def generations(self, ident, request, emit, clock):
            return super().generations(ident, request, emit, clock) if request == hard else [ident]

    notes, preparer = Notes(), Patient()
    handler = handler_of(notes, preparer)
    for ident in range(9):
        handler.take(Frame(ident, Generate(hard)))
    handler.take(Frame(9, GENERATE))
    wait_for(handler._pool)
    assert notes.submitted == [(9,)]
    preparer.let.set()
    wait_for(handler._form_pool)
    assert len(notes.submitted) == 10


def test_a_body_that_cannot_be_read_fails_alone():
    def frame(ident, *values):
        content = msgspec.msgpack.encode(values)
        return len(content).to_bytes(4, "big") + ident.to_bytes(8, "big") + content

    stream = io.BytesIO(frame(3, "Tokenize", {"text": 5}, None) + encode(Frame(4, RENDER)))
    refused, good = read_frame(stream), read_frame(stream)
    assert refused.id == 3 and refused.body.error.code == "invalid_parameter"
    assert good == Frame(4, RENDER)
    assert read_frame(stream) is None

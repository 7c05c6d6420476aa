"""Inside a worker: answers that cannot be sent, cancelling before a request runs, orphans."""

import os
import subprocess
import sys
import threading

import pytest

from hearth.backends.contract import Failed, Finished, Request
from hearth.backends.errors import TemplateError
from hearth.backends.process import die_with_parent
from hearth.backends.wire import Cancel, Frame, Generate, Text, read_frame_blocking
from hearth.backends.worker import Desk, Outbox


def test_an_answer_that_cannot_be_sent_fails_and_the_next_one_is_sent():
    reading, writing = os.pipe()
    outbox = Outbox(os.fdopen(writing, "wb"))
    outbox.put(1, Text("\ud800"))
    outbox.put(2, Text("fine"))
    outbox.close()
    with os.fdopen(reading, "rb") as answers:
        first, second = read_frame_blocking(answers), read_frame_blocking(answers)
    assert first.id == 1 and isinstance(first.body, Failed)
    assert second == Frame(2, Text("fine"))


class Notes:
    """Stands for engine and outbox: what was submitted, cancelled and said."""

    def __init__(self):
        self.submitted, self.cancelled, self.said = [], [], []

    def submit(self, sequence):
        self.submitted.append(sequence)

    def cancel(self, ident):
        self.cancelled.append(ident)

    def put(self, ident, body):
        self.said.append((ident, body))


class SlowPreparer:
    """Prepares when it is let."""

    def __init__(self, error=None):
        self.begun, self.let = threading.Event(), threading.Event()
        self.error = error

    def sequence(self, ident, request, emit, clock):
        self.begun.set()
        assert self.let.wait(10)
        if self.error is not None:
            raise self.error
        return ident


@pytest.mark.parametrize("error", [None, TemplateError("no")])
def test_a_request_that_is_cancelled_while_it_is_prepared_is_over_at_once(error):
    notes, preparer = Notes(), SlowPreparer(error)
    desk = Desk(notes, preparer, None, notes)
    desk.take(Frame(7, Generate(Request(text="x"))))
    assert preparer.begun.wait(10)
    desk.take(Frame(7, Cancel()))
    assert notes.said == [(7, Finished("cancelled"))]
    preparer.let.set()
    desk._pool.shutdown()
    assert notes.said == [(7, Finished("cancelled"))]
    assert notes.submitted == [] and notes.cancelled == []


def test_a_request_that_was_prepared_is_cancelled_in_the_engine():
    notes, preparer = Notes(), SlowPreparer()
    preparer.let.set()
    desk = Desk(notes, preparer, None, notes)
    desk.take(Frame(7, Generate(Request(text="x"))))
    desk._pool.shutdown()
    desk.take(Frame(7, Cancel()))
    assert notes.submitted == [7] and notes.cancelled == [7] and notes.said == []


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
@pytest.mark.parametrize(("parent", "said"), [("os.getppid()", "alive"), ("os.getpid()", "")])
def test_a_process_whose_parent_is_gone_leaves_at_its_first_instruction(parent, said):
    code = f"import os; from {die_with_parent.__module__} import die_with_parent as tie\n"
    code += f"tie({parent}); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == said

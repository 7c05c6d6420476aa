"""The list of answered requests: their outcomes, and nothing of their contents."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hearth.app.server.logs import Answered, RequestLog, last_requests
from hearth.app.server.security import Policy

SECRET = "the treasure lies under the oak"
SAYS = [
    {"prompt_tokens": 7, "cached_tokens": 0},
    {"text": "Yes"},
    {"text": "."},
    {"finish": "stop"},
]


def chat(**more):
    return {"model": "tiny", "messages": [{"role": "user", "content": SECRET}], **more}


@pytest.fixture
def noted(endpoint, tmp_path):
    """Makes an endpoint that records its requests; call the second value to read them, newest
    first.
    """
    path = tmp_path / "requests.log"
    logs = []

    def make(*answers, **how):
        made = endpoint(*answers, **how)
        log = RequestLog(path, clock=lambda: 1000.0)
        logs.append(log)
        made.app.state.services = replace(made.app.state.services, log=log)
        return made

    yield make, lambda: last_requests(path, 100)
    for log in logs:
        log.__exit__()


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_noted_with_its_tokens_and_not_its_words(noted, tmp_path, stream):
    make, read = noted
    make(SAYS).post("/v1/chat/completions", chat(stream=stream))
    [one] = read()
    assert (one.method, one.path, one.status) == ("POST", "/v1/chat/completions", 200)
    assert (one.model, one.prompt_tokens, one.generated_tokens) == ("tiny", 7, 2)
    assert one.at == 1000.0 and one.ms > 0
    said = (tmp_path / "requests.log").read_text()
    assert "treasure" not in said and "Yes" not in said


def test_refusals_are_noted_too(noted):
    make, read = noted
    made = make(policy=Policy(key="sesame"))
    made.get("/v1/models?secret=1")
    assert [(one.path, one.status) for one in read()] == [("/v1/models", 401)]


def test_what_watches_is_left_out_where_all_is_well(noted):
    make, read = noted
    made = make()
    made.get("/health")
    made.get("/metrics")
    made.get("/nowhere")
    assert [(one.path, one.status) for one in read()] == [("/nowhere", 404)]


def test_lines_that_are_none_are_left_out_and_the_newest_comes_first(tmp_path):
    path = tmp_path / "requests.log"
    assert last_requests(path, 5) == []
    with RequestLog(path, clock=lambda: 5.0) as log:
        log.note("GET", "/v1/models", 200, 1.25)
        log.note("GET", "/" + "x" * 5000, 404, 1.0)
    with path.open("a") as file:
        file.write('{"at": 1}\nnot json\n[]\n{"a": "b"}\n')
    newest, oldest = last_requests(path, 50)
    assert oldest == Answered(5.0, "GET", "/v1/models", 200, 1.2)
    assert newest.status == 404 and len(newest.path) < 200
    assert last_requests(path, 1) == []


def test_the_file_is_private_and_kept_small(tmp_path, monkeypatch):
    monkeypatch.setattr("hearth.app.server.logs.MAX_LOG_BYTES", 500)
    monkeypatch.setattr("hearth.backends.machine.logs.MAX_LOG_BYTES", 500)
    path = tmp_path / "requests.log"
    with RequestLog(path) as log:
        for _ in range(100):
            log.note("GET", "/v1/models", 200, 1.0)
    assert path.stat().st_size < 1500 and path.with_name("requests.log.1").exists()
    assert path.stat().st_mode & 0o077 == 0

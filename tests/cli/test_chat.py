"""The line-mode chat, its questions piped in."""

from __future__ import annotations

from contextlib import closing

import pytest

from hearth.app.chats.store import ChatStore
from hearth.app.paths import find_paths

TOO_LONG = {
    "error": {
        "code": "prompt_too_long",
        "message": "The prompt has 600 tokens; the context of tiny holds 512.",
    }
}


def say(*texts: str) -> str:
    return "".join(f"{text}\n" for text in texts)


def contents(request) -> list[str]:
    return [message["content"] for message in request["messages"]]


def test_each_line_is_a_turn_and_turns_are_remembered(hearth) -> None:
    result = hearth("chat", stdin=say("one", "", "two"))
    assert result.code == 0
    assert result.out == "echo: one\necho: two\n"
    assert contents(result.host.requests[1]) == ["one", "echo: one", "two"]


def test_a_message_of_several_lines(hearth) -> None:
    result = hearth("chat", "--plain", stdin='one\\\ntwo\n"""three\n\nfour"""\n"""\nfive\n"""\n')
    asked = [contents(request)[-1] for request in result.host.requests]
    assert asked == ["one\ntwo", "three\n\nfour", "five"]


def test_a_new_chat_forgets_and_a_system_prompt_stays(hearth) -> None:
    result = hearth("chat", stdin=say("/system Be brief.", "one", "/new", "two"))
    assert contents(result.host.requests[1]) == ["Be brief.", "two"]
    assert result.out == "echo: one\necho: two\n"


def test_settings_change_from_the_next_answer_on(hearth) -> None:
    result = hearth(
        "chat", "--seed", "1", stdin=say("one", "/set top-k 3", "/set seed auto", "two")
    )
    first, second = (request["sampling"] for request in result.host.requests)
    assert (first["top_k"], second["top_k"]) == (40, 3)
    assert first["seed"] == 1 != second["seed"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/set temperature 99", "from 0 to 10"),
        ("/set temperatur 1", "Did you mean temperature?"),
        ("/set context 9", "when a model is loaded"),
        ("/hepl", "Did you mean /help?"),
        ("/model nothing", 'There is no model "nothing"'),
    ],
)
def test_a_mistake_is_said_and_the_chat_goes_on(hearth, line, said) -> None:
    result = hearth("chat", stdin=say(line, "still there?"))
    assert said in result.err
    assert result.out == "echo: still there?\n"
    assert result.code in (2, 3)


def test_the_model_can_be_changed_in_the_middle(hearth, home) -> None:
    models = home / "data" / "models"
    (models / "other.gguf").write_bytes((models / "tiny.gguf").read_bytes())
    result = hearth("chat", "--stats", stdin=say("one", "/model other", "two"))
    assert [spec["name"] for spec in result.host.specs] == ["tiny", "tiny", "other", "other"]
    assert contents(result.host.requests[1]) == ["one", "echo: one", "two"]
    assert "other · F32" in result.err


def test_help_lists_every_command_on_stderr(hearth) -> None:
    result = hearth("chat", stdin=say("/help", "/set", "/system", "/model"))
    assert result.out == ""
    for command in ("/help", "/new", "/system", "/model", "/set", "/stats", "/quit"):
        assert command in result.err
    assert "repetition_penalty" in result.err


@pytest.mark.parametrize("line", ["/quit", "/exit"])
def test_quit_leaves(hearth, line) -> None:
    result = hearth("chat", stdin=say("one", line, "two"))
    assert (result.code, result.out) == (0, "echo: one\n")


def test_stats_can_be_switched_on(hearth) -> None:
    result = hearth("chat", stdin=say("/stats", "one"))
    assert "decode 50.0 tok/s" in result.err
    assert result.out == "echo: one\n"


def test_a_path_at_the_start_is_no_command(hearth) -> None:
    result = hearth("chat", stdin=say("/etc/hosts is what?"))
    assert result.out == "echo: /etc/hosts is what?\n"


def test_when_the_context_is_full_the_oldest_turn_goes_and_is_named(hearth) -> None:
    answers = [[{"text": "A"}, {"finish": "stop"}], [{"text": "B"}, {"finish": "stop"}], [TOO_LONG]]
    result = hearth("chat", stdin=say("first question", "second", "third"), answers=answers)
    assert result.code == 0
    assert "600 tokens" in result.err and "512" in result.err
    assert "2 oldest messages are left out" in result.err
    assert contents(result.host.requests[2]) == ["first question", "A", "second", "B", "third"]
    assert contents(result.host.requests[3]) == ["second", "B", "third"]
    assert result.out == "A\nB\necho: third\n"


def test_a_question_too_long_by_itself_is_an_error_and_is_taken_back(hearth) -> None:
    answers = [[{"text": "A"}, {"finish": "stop"}], [TOO_LONG], [TOO_LONG]]
    result = hearth("chat", stdin=say("one", "far too long", "three"), answers=answers)
    assert result.code == 1
    assert "error: The prompt has 600 tokens" in result.err
    assert contents(result.host.requests[-1]) == ["one", "A", "three"], "nothing was left out"


def test_the_text_of_a_broken_answer_stays_in_the_chat(hearth) -> None:
    died = {"error": {"code": "worker_died", "message": "The process died."}}
    result = hearth("chat", stdin=say("one", "two"), answers=[[{"text": "Hal"}, died]])
    assert result.code == 1
    assert result.out == "Hal\necho: two\n"
    assert "error: The process died." in result.err
    assert contents(result.host.requests[1]) == ["one", "Hal", "two"]


@pytest.mark.parametrize(
    "end",
    [{"error": {"code": "worker_died", "message": "The process died."}}, {"finish": "cancelled"}],
    ids=["failed", "stopped"],
)
def test_a_question_without_an_answer_leaves_no_trace(hearth, end) -> None:
    result = hearth("chat", stdin=say("one", "two"), answers=[[{"prompt_tokens": 7}, end]])
    assert contents(result.host.requests[1]) == ["two"]


def test_a_model_without_a_template_does_not_chat(hearth) -> None:
    result = hearth("chat", stdin=say("one"), info={"has_chat_template": False})
    assert result.code == 1
    assert "--raw" in result.err


def test_piped_bytes_that_are_no_text_are_refused_as_in_run(hearth) -> None:
    result = hearth("chat", stdin=b"one\nok \xff\n")
    assert (result.code, result.out) == (2, "echo: one\n")
    assert "not UTF-8" in result.err and "0xff at 3" in result.err


def test_a_stop_text_can_be_taken_away_again(hearth) -> None:
    result = hearth("chat", "--stop", "END", stdin=say("one", "/set stop", "two"))
    assert [request["stop"] for request in result.host.requests] == [("END",), ()]


def test_another_model_brings_its_own_system_prompt(hearth, home) -> None:
    models = home / "data" / "models"
    (models / "other.gguf").write_bytes((models / "tiny.gguf").read_bytes())
    (home / "config").mkdir()
    (home / "config" / "settings.toml").write_text('[models.other]\nsystem = "Be other."\n')
    result = hearth("chat", stdin=say("/model other", "one"))
    assert contents(result.host.requests[0]) == ["Be other.", "one"]
    result = hearth("chat", stdin=say("/system Mine.", "/model other", "one"))
    assert contents(result.host.requests[0]) == ["Mine.", "one"]


def test_log_probabilities_are_refused_where_nothing_shows_them(hearth) -> None:
    result = hearth("chat", "--logprobs", "3", stdin="one\n")
    assert result.code == 2
    assert "log probabilities" in result.err and result.host.requests == []


def test_the_chat_that_changed_last_is_continued(hearth) -> None:
    first = hearth("chat", stdin=say("pinned", "/new", "one"))
    assert first.code == 0
    with closing(ChatStore(find_paths().chats_file)) as chats:
        chats.update(chats.threads()[1].id, pinned=True)
    result = hearth("chat", "--plain", "--continue", stdin=say("two"))
    assert contents(result.host.requests[0]) == ["one", "echo: one", "two"]
    assert 'Continuing "one"' in result.err


def test_an_earlier_chat_is_opened_by_its_number(hearth) -> None:
    hearth("chat", stdin=say("first", "/new", "/set top_k 3", "second"))
    result = hearth("chat", stdin=say("/chats", "/chats 2", "more", "/chats 9"))
    assert "1  second" in result.err and "2  first" in result.err
    [request] = result.host.requests
    assert contents(request) == ["first", "echo: first", "more"]
    assert "/chats lists them" in result.err


def test_a_first_chat_has_nothing_to_continue(hearth) -> None:
    result = hearth("chat", "--plain", "--continue", stdin=say("one"))
    assert result.out == "echo: one\n" and "no chat yet" in result.err


def test_a_history_that_cannot_be_opened_does_not_prevent_a_chat(hearth) -> None:
    find_paths().chats_file.mkdir(parents=True)
    result = hearth("chat", stdin=say("one", "two"))
    assert "will not be saved" in result.err
    assert contents(result.host.requests[1]) == ["one", "echo: one", "two"]

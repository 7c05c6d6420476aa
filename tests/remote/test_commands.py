"""`hearth` with a model that another machine serves; no host is started for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fake_host import FakeHost
from fake_remote import HELLO, VLLM, Reply, answer, serving
from hearth.app.cli.main import main
from hearth.backends.host import client


@pytest.fixture
def hearth(tmp_path: Path, monkeypatch, capsys):
    """Runs a command whose settings name the server at `url` as "cluster"."""

    def run(url: str, *words: str, more: str = ""):
        home = tmp_path / "home"
        (home / "config").mkdir(parents=True, exist_ok=True)
        table = f'[remotes.cluster]\nurl = "{url}"\n{more}'
        (home / "config" / "settings.toml").write_text(table)
        host = FakeHost({})
        monkeypatch.setenv("HEARTH_HOME", str(home))
        monkeypatch.setattr(client, "HostClient", host)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        capsys.readouterr()
        code = main(list(words))
        out, err = capsys.readouterr()
        assert host.attached == 0
        return code, out, err

    return run


def test_a_question(hearth) -> None:
    with serving(HELLO) as fake:
        code, out, err = hearth(fake.url, "run", "cluster", "hello", "--stats")
        assert (code, out) == (0, "Hi you\n")
        assert f"cluster · big at {fake.url} · vllm · context 32,768" in err
        assert fake.asked["messages"][-1] == {"role": "user", "content": "hello"}


def test_what_goes_wrong_is_said_with_its_exit_code(hearth) -> None:
    code, out, err = hearth("http://127.0.0.1:9/v1", "run", "cluster", "hello")
    assert (code, out) == (5, "")
    assert "cluster at http://127.0.0.1:9/v1 cannot be reached" in err


def test_a_stream_that_is_cut_keeps_its_text_and_fails(hearth) -> None:
    with serving(Reply(HELLO.body[:1], how="cut")) as fake:
        code, out, err = hearth(fake.url, "run", "cluster", "hello")
    assert (code, out) == (5, "Hi\n") and "cut" in err


def test_it_is_listed_without_being_asked(hearth) -> None:
    with serving(HELLO) as fake:
        code, out, _ = hearth(fake.url, "list")
        [line] = [line for line in out.splitlines() if line.startswith("cluster")]
        assert code == 0 and line.split() == ["cluster", "remote", fake.url, "remote"]
        assert fake.connections == 0


def test_it_is_shown_as_its_server_tells(hearth) -> None:
    with serving(HELLO) as fake:
        code, out, _ = hearth(fake.url, "show", "cluster")
    assert code == 0
    assert "model    big" in out and "server   vllm" in out and "context  32768" in out


@pytest.mark.parametrize("flag", ["--template", "--tensors", "--verify"])
def test_what_only_files_have_is_not_shown(hearth, flag) -> None:
    code, out, err = hearth("http://127.0.0.1:9/v1", "show", "cluster", flag)
    assert (code, out) == (2, "") and f"{flag}: cluster runs elsewhere" in err


def test_offline_a_far_one_is_refused(hearth) -> None:
    code, _, err = hearth("http://10.0.0.5/v1", "run", "cluster", "hello", "--offline")
    assert code == 5 and "Hearth is offline (--offline)" in err


def test_a_limit_of_the_other_end_is_not_called_a_context(hearth) -> None:
    cut = Reply((*HELLO.body[:2], HELLO.body[2].replace(b"stop", b"length"), *HELLO.body[3:]))
    unknown = {name: VLLM[name] for name in ("id", "owned_by")}
    with serving(cut, models=(unknown,)) as fake:
        _, _, err = hearth(fake.url, "run", "cluster", "hello")
    assert "(cut: the other end's limit of tokens is reached)" in err


def test_settings_of_loading_are_said_to_do_nothing(hearth) -> None:
    with serving(HELLO) as fake:
        _, _, err = hearth(fake.url, "run", "cluster", "hello", "--ctx", "512")
    assert "settings of loading do nothing for it" in err


def test_it_is_not_measured_as_a_file(hearth) -> None:
    code, _, err = hearth("http://127.0.0.1:9/v1", "bench", "cluster")
    assert code == 2 and "hearth bench --url http://127.0.0.1:9/v1" in err


def test_no_proxy_stands_between_servers_of_this_machine(hearth, monkeypatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving({"/v1/chat/completions": [answer({"error": "busy"}, 429), HELLO]}) as fake:
        code, _, err = hearth(fake.url, "run", "cluster", "hello")
        assert code == 1 and "cluster is busy" in err

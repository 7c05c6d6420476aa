"""The helper process: found dead, stuck or busy, it never takes the renderer down with it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from hearth.backends.errors import InternalError, InvalidParameter, TemplateError
from hearth.backends.text.renderer import Renderer

HELLO = [{"role": "user", "content": "hello"}]
GOOD = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ add_generation_prompt }}{{ x }}"
ENDLESS = (
    "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)


@pytest.fixture
def renderer():
    renderer = Renderer()
    yield renderer
    renderer.close()


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(pid, seconds=10.0):
    end = time.monotonic() + seconds
    while not gone(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return gone(pid)


def test_all_arguments_reach_the_template(renderer):
    prompt = renderer.render(
        GOOD, HELLO, add_generation_prompt=False, bos_token="<", eos_token=">", extra={"x": "é🙂"}
    )
    assert prompt == "<hello>Falseé🙂"


def test_tools_reach_the_template(renderer):
    tool = {"type": "function", "function": {"name": "look"}}
    assert renderer.render("{{ tools[0].function.name }}", HELLO, tools=[tool]) == "look"
    assert renderer.render("{{ tools is none }}", HELLO) == "True"


def test_variables_are_what_a_template_reads_and_does_not_set(renderer):
    source = "{% set mine = yours or 1 %}{% if not on is defined %}{% set on = 0 %}{% endif %}"
    source += "{% for m in messages %}{{ m.x }}{{ range(mine) }}{{ on }}{% endfor %}"
    assert renderer.variables(source) == {"messages", "on", "yours"}
    with pytest.raises(TemplateError) as caught:
        renderer.variables("{% if %}")
    assert caught.value.data["reason"] == "syntax"
    assert renderer.render(GOOD, HELLO) == "helloTrue"


def test_one_helper_serves_many_renders(renderer):
    renderer.render(GOOD, HELLO)
    first = renderer._helper.pid
    for _ in range(20):
        renderer.render(GOOD, HELLO)
    assert renderer._helper.pid == first


def test_a_timeout_is_kept_and_named(renderer):
    renderer.render(GOOD, HELLO)
    began = time.monotonic()
    with pytest.raises(TemplateError, match=r"took more than 0\.3 s") as caught:
        renderer.render(ENDLESS, HELLO, timeout_s=0.3)
    assert time.monotonic() - began < 0.8
    assert caught.value.data["reason"] == "timeout"
    assert renderer.render(GOOD, HELLO) == "helloTrue"


@pytest.mark.parametrize(("before_s", "timeout_s"), [(0.5, 0.6), (20, 0.3)])
def test_a_timeout_holds_whatever_was_asked_before(renderer, before_s, timeout_s):
    """Earlier questions leave no alarm behind."""
    renderer.render(GOOD, HELLO)
    for _ in range(3):
        renderer.render(GOOD, HELLO, timeout_s=before_s)
    with pytest.raises(TemplateError) as caught:
        renderer.render(ENDLESS, HELLO, timeout_s=timeout_s)
    assert caught.value.data["reason"] == "timeout"


def test_too_much_output_is_named(renderer):
    with pytest.raises(TemplateError, match="more than 1 MiB"):
        renderer.render("{{ 'x' * 1100000 }}", HELLO)


def test_a_helper_that_died_while_idle_is_replaced(renderer):
    renderer.render(GOOD, HELLO)
    pid = renderer._helper.pid
    os.kill(pid, signal.SIGTERM)
    assert wait_until_gone(pid)
    assert renderer.render(GOOD, HELLO) == "helloTrue"


def test_a_helper_that_dies_at_work_is_an_error_of_that_render(renderer):
    renderer.render(GOOD, HELLO)
    threading.Timer(0.2, os.kill, (renderer._helper.pid, signal.SIGTERM)).start()
    with pytest.raises(TemplateError) as caught:
        renderer.render(ENDLESS, HELLO, timeout_s=20)
    assert caught.value.data["reason"] == "crashed"
    assert renderer.render(GOOD, HELLO) == "helloTrue"


def test_a_helper_that_takes_too_much_memory_is_killed(renderer, monkeypatch):
    """Also where the system has no limit for it."""
    renderer.render(GOOD, HELLO)
    monkeypatch.setattr("hearth.backends.machine.helper.MOST_MEMORY_BYTES", 1 << 20)
    began = time.monotonic()
    with pytest.raises(TemplateError) as caught:
        renderer.render(ENDLESS, HELLO, timeout_s=20)
    assert caught.value.data["reason"] == "crashed"
    assert time.monotonic() - began < 5
    monkeypatch.undo()
    assert renderer.render(GOOD, HELLO) == "helloTrue"


@pytest.mark.skipif(sys.platform == "win32", reason="stopping a process needs POSIX signals")
def test_a_helper_that_takes_no_input_is_killed_in_time(renderer):
    renderer.render(GOOD, HELLO)
    os.kill(renderer._helper.pid, signal.SIGSTOP)
    large = [{"role": "user", "content": "x" * 4_000_000}]  # more than a pipe holds
    with pytest.raises(TemplateError, match="took more than"):
        renderer.render(GOOD, large, timeout_s=0.3)
    assert renderer.render(GOOD, HELLO) == "helloTrue"


def test_others_wait_no_longer_than_the_hostile_one_may_run(renderer):
    renderer.render(GOOD, HELLO)
    answers = []

    def ask(template):
        try:
            answers.append(renderer.render(template, HELLO, timeout_s=0.4))
        except TemplateError as error:
            answers.append(error.data["reason"])

    threads = [threading.Thread(target=ask, args=(ENDLESS,))]
    threads += [threading.Thread(target=ask, args=(GOOD,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert sorted(answers) == ["helloTrue"] * 4 + ["timeout"]


def test_the_helper_has_no_secrets_and_may_not_open_files(renderer, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    renderer.render(GOOD, HELLO)
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    pid = renderer._helper.pid
    assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
    lines = Path(f"/proc/{pid}/limits").read_text(encoding="ascii").splitlines()
    limits = {line[:26].strip(): line[26:].split()[:2] for line in lines}
    assert limits["Max open files"] == ["0", "0"]
    assert limits["Max address space"] == [str(512 * 2**20)] * 2


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "add_generation_prompt"])
def test_extra_variables_may_not_replace_the_conversation(renderer, name):
    with pytest.raises(InvalidParameter, match=name):
        renderer.render(GOOD, HELLO, extra={name: "x"})


def test_closing_ends_the_helper_and_further_renders():
    renderer = Renderer()
    renderer.start()
    renderer.render(GOOD, HELLO)
    pid = renderer._helper.pid
    renderer.close()
    assert gone(pid)
    with pytest.raises(InternalError, match="closed"):
        renderer.render(GOOD, HELLO)
    renderer.close()


def test_closing_while_the_helper_starts():
    renderer = Renderer()
    renderer.start()
    renderer.close()


PARENT = """
import sys, threading
from hearth.backends.text.renderer import Renderer
renderer = Renderer()
renderer.render("ready", [{"role": "user", "content": "hi"}])
busy = (sys.argv[1], [{"role": "user", "content": "hi"}])
threading.Thread(target=renderer.render, args=busy, kwargs={"timeout_s": 60}).start()
print(renderer._helper.pid, flush=True)
threading.Event().wait()
"""


def test_a_busy_helper_dies_with_its_parent():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, ENDLESS], stdout=subprocess.PIPE, text=True
    )
    with parent:
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.kill()
    assert wait_until_gone(pid)

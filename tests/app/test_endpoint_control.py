"""An endpoint of the app's own: on, off, what goes wrong, and that it never outlives the app."""

import asyncio
import http.client
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from urllib.parse import urlsplit

import psutil
import pytest

from async_tests import in_loop
from hearth.app.endpoint_control import EndpointControl, EndpointFailed, Launch, launch
from hearth.app.paths import find_paths
from hearth.app.settings import Setting, load_settings
from hosts import gone

QUIET = {**os.environ, "HEARTH_HOST_IDLE_S": "0.1"}
STANDS_IN = """
import signal, sys, time
ended = []
def end(*_):
    ended.append(1)
    if len(ended) == 2:
        sys.exit(0)
    print("Finishing 1 running requests.", file=sys.stderr, flush=True)
signal.signal(signal.SIGTERM, end)
print("Serving guide.", file=sys.stderr, flush=True)
print("http://127.0.0.1:1/v1", flush=True)
while True:
    time.sleep(0.01)
"""


def how(code=STANDS_IN):
    return Launch((), dict(os.environ), (sys.executable, "-c", code))


@pytest.fixture
def environ(tmp_path):
    return {**QUIET, "HEARTH_HOME": str(tmp_path / "hearth")}


def real(environ, port=0):
    settings = load_settings(find_paths(environ).settings_file, {})
    return launch(settings, "127.0.0.1", port, key=False, environ=environ)


def health(url):
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)) as connection:
        connection.request("GET", "/health")
        return connection.getresponse().status


@in_loop
async def test_it_is_switched_on_asked_and_switched_off(environ):
    states = []
    control = EndpointControl(lambda: states.append(control.state))
    await control.start(real(environ))
    assert control.state == "on" and control.error is None
    assert await asyncio.to_thread(health, control.url) == 200
    child = psutil.Process(control._process.pid)
    control.stop()
    await control.close()
    assert (control.state, control.url, control.error) == ("off", "", None)
    gone([child])
    assert list(dict.fromkeys(states)) == ["starting", "on", "stopping", "off"]


@in_loop
async def test_a_port_in_use_is_told_with_the_cure(environ):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        control = EndpointControl()
        with pytest.raises(EndpointFailed, match="the port is in use") as failed:
            await control.start(real(environ, port))
        assert "another port" in failed.value.hint and "Fatal" not in failed.value.hint
        assert control.state == "off" and control.error is failed.value


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_it_dies_with_the_app_even_on_kill_9(environ, tmp_path):
    code = f"""
import asyncio, os
from hearth.app.endpoint_control import EndpointControl, launch
from hearth.app.settings import load_settings
from pathlib import Path
async def main():
    control = EndpointControl()
    settings = load_settings(Path({str(tmp_path / "none.toml")!r}), {{}})
    await control.start(launch(settings, "127.0.0.1", 0, key=False))
    print(control._process.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    app = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environ
    )
    child = psutil.Process(int(app.stdout.readline()))
    app.send_signal(signal.SIGKILL)
    app.communicate(timeout=30)
    gone([child])


@in_loop
async def test_the_first_stop_lets_requests_finish_the_second_ends_them():
    changed = asyncio.Event()
    control = EndpointControl(changed.set)
    await control.start(how())
    assert control.url == "http://127.0.0.1:1/v1"
    control.stop()
    while "Finishing" not in control.says:
        changed.clear()
        await asyncio.wait_for(changed.wait(), 20)
    assert control.state == "stopping"
    control.stop()
    await asyncio.wait_for(control._watching, 20)
    assert control.state == "off" and control.error is None


@in_loop
async def test_one_that_ends_by_itself_says_why():
    control = EndpointControl()
    code = "import sys; print('http://x/v1', flush=True); sys.exit('error: It broke.\\nMend it.')"
    await control.start(how(code))
    await asyncio.wait_for(control._watching, 20)
    assert control.state == "off"
    assert (control.error.message, control.error.hint) == ("It broke.", "Mend it.")
    with pytest.raises(EndpointFailed, match="exit code 3"):
        await control.start(how("import sys; sys.exit(3)"))


@in_loop
async def test_one_that_does_not_listen_is_killed(monkeypatch):
    monkeypatch.setattr("hearth.app.endpoint_control._END_GRACE_S", 0.1)
    stubborn = STANDS_IN.replace("len(ended) == 2", "False")
    control = EndpointControl()
    await control.start(how(stubborn))
    await control.close()
    assert control.state == "off" and control._process.returncode is not None
    await control.close()


def test_what_was_typed_holds_for_it_too(tmp_path):
    settings = load_settings(tmp_path / "settings.toml", {}).with_flags(
        {
            "context": Setting(2048, "--ctx"),
            "backend": Setting("native", "--backend"),
            "kv_budget": Setting(2**30, "--kv-budget"),
            "temperature": Setting(0.5, "--temperature"),
            "offline": Setting(True, "--offline"),
        }
    )
    made = launch(settings, "::1", 0, key=True, environ={"A": "b"})
    assert made.arguments == (
        *("--offline", "serve", "--host", "::1", "--port", "0", "--generate-key"),
    )
    assert made.environ == {
        "A": "b",
        "HEARTH_CONTEXT": "2048",
        "HEARTH_KV_BUDGET": "1GiB",
        "HEARTH_BACKEND": "native",
    }
    given = launch(settings, "::1", 0, key=True, environ={"HEARTH_API_KEY": "sesame"})
    assert "--generate-key" not in given.arguments

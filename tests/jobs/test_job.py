"""Jobs in child processes: what they tell, how they end, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from async_tests import in_loop
from hearth.app.jobs.child import Stopped, Work
from hearth.app.jobs.job import Job, run_job
from hearth.app.library.errors import FileTrouble
from hearth.backends.errors import DoesNotFit, InternalError

_WORK = """
import errno, os, time
from hearth.backends.errors import DoesNotFit

def work(question, reporter):
    print("printed by native code")
    if question["kind"] == "count":
        for number in range(question["to"]):
            reporter.progress(number=number)
        return {"counted": question["to"]}
    if question["kind"] == "fail":
        raise DoesNotFit("It needs 2 bytes.", "Buy one.", needed=2)
    if question["kind"] == "long":
        return {"answer": "x" * question["size"]}
    if question["kind"] == "no file":
        open("/nowhere/at all")
    if question["kind"] == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    if question["kind"] == "break":
        raise ZeroDivisionError("an unexpected division")
    if question["kind"] == "die":
        os.kill(os.getpid(), 9)
    if question["kind"] == "babble":
        os.write(reporter._output.fileno(), b"not json\\n")
        time.sleep(60)
    reporter.progress(ready=True)
    while question["kind"] == "die when stopped":
        if reporter.stopped:
            os._exit(1)
    while True:
        reporter.check()
        time.sleep(0.01)
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    (tmp_path / "some_work.py").write_text(_WORK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "some_work", raising=False)
    work: Work = importlib.import_module("some_work").work
    return work


def test_progress_and_result(work: Work) -> None:
    told: list[int] = []
    question = {"kind": "count", "to": 1000}
    answer = run_job(work, question, lambda values: told.append(values["number"]))
    assert answer == {"counted": 1000}
    assert told == sorted(told) and told[-1] == 999
    assert len(told) < 1000, "what comes too fast is told together"


def test_a_typed_error_arrives_as_it_was(work: Work) -> None:
    with pytest.raises(DoesNotFit, match="2 bytes") as caught:
        run_job(work, {"kind": "fail"}, lambda values: None)
    assert caught.value.hint == "Buy one." and caught.value.data["needed"] == 2


@pytest.mark.parametrize(("kind", "said"), [("no file", "/nowhere/at all"), ("full", "No space")])
def test_a_file_that_cannot_be_used_is_no_defect(work: Work, kind: str, said: str) -> None:
    with pytest.raises(FileTrouble, match=said):
        run_job(work, {"kind": kind}, lambda values: None)


def test_an_answer_of_a_million_tokens_arrives(work: Work) -> None:
    size = 80 * 10**6
    answer = run_job(work, {"kind": "long", "size": size}, lambda values: None)
    assert len(answer["answer"]) == size


@pytest.mark.parametrize(
    ("kind", "said"),
    [("break", "an unexpected division"), ("die", "signal 9"), ("babble", "unreadable")],
)
def test_whatever_goes_wrong_is_told(work: Work, kind: str, said: str) -> None:
    with pytest.raises(InternalError, match=said):
        run_job(work, {"kind": kind}, lambda values: None)


@pytest.mark.parametrize("kind", ["wait", "die when stopped"])
@in_loop
async def test_stop_ends_it_well(work: Work, kind: str) -> None:
    job = await Job.start(work, {"kind": kind})
    async for values in job.updates():
        assert values == {"ready": True}
        job.stop()
    with pytest.raises(Stopped):
        await job.result()
    await job.close()


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_job_that_is_left_behind_ends(work: Work, is_closed: bool) -> None:
    async def go() -> int:
        job = await Job.start(work, {"kind": "wait"})
        async for _ in job.updates():
            break
        if is_closed:
            await job.close()
        return job.pid

    assert not psutil.pid_exists(asyncio.run(go()))
    gc.collect()  # Pipes that the event loop left open would complain.


def test_a_job_ends_with_its_parent(work: Work) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import asyncio, sys\n"
            "from hearth.app.jobs.job import Job\n"
            "from some_work import work\n"
            "async def go():\n"
            "    job = await Job.start(work, {'kind': 'wait'})\n"
            "    async for _ in job.updates():\n"
            "        print(job.pid, flush=True)\n"
            "asyncio.run(go())\n",
        ],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    child.wait(timeout=30)


def test_what_it_prints_goes_to_the_log(work: Work, tmp_path: Path) -> None:
    run_job(work, {"kind": "count", "to": 1}, lambda values: None, log_dir=tmp_path)
    assert "printed by native code" in (tmp_path / "jobs.log").read_text()

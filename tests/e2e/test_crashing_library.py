"""A llama.cpp that dies on quantised files unless weights stay as they are: Hearth answers."""

import os

import pytest

import llama_shim
from commands import hearth


@pytest.fixture
def environ(tmp_path):
    shim = llama_shim.crashing(tmp_path / "shim")
    path = os.pathsep.join(filter(None, [str(shim), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "HEARTH_HOME": str(tmp_path / "home")}


def test_run_answers_and_says_why_it_is_slower(environ, guide_q8):
    command = ("run", "--backend", "llamacpp", str(guide_q8), "How do I download a model?")
    done = hearth(environ, *command, "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert "hearth pull" in done.stdout
    assert "slower" in done.stderr and "hearth doctor" in done.stderr


def test_doctor_names_cause_and_cure(environ):
    done = hearth(environ, "doctor")
    assert done.returncode == 1
    assert "SIGSEGV" in done.stdout or "GCC" in done.stdout
    assert "pip install --force-reinstall --no-cache-dir" in done.stdout

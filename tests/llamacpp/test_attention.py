"""Which attention is faster on this machine: measured, stored, and used only where it matters."""

import itertools
import json
from dataclasses import replace

import pytest

from hearth.backends.contract.models import ModelSettings
from hearth.backends.errors import BackendUnavailable, Busy
from hearth.backends.llamacpp import attention
from hearth.backends.llamacpp.attention import costs, heads_of, measured
from hearth.backends.llamacpp.attention_choice import Attention
from hearth.backends.llamacpp.footprint import weight_bytes
from hearth.backends.llamacpp.params import COMPUTE_BYTES, plan_context
from hearth.backends.llamacpp.probe_model import Heads
from hearth.quant.gguf.reader import read_header

SMALL = Heads(2, 1, 32, 32)
LONG = 8192


class Counting:
    """Replaces the measurement."""

    def __init__(self, found):
        self.found = found
        self.asked = []

    def __call__(self, heads, kv_type, threads):
        self.asked.append((heads, kv_type, threads))
        return self.found


@pytest.fixture
def slow_flash(monkeypatch):
    counting = Counting(Attention(flash_s=0.003, plain_s=0.001))
    monkeypatch.setattr(attention, "_measure", counting)
    return counting


def test_it_is_really_measured(monkeypatch):
    monkeypatch.setattr(attention, "DEPTH", 256)
    monkeypatch.setattr(attention, "_NEAR", 100.0)  # Steps of microseconds are never steady.
    found = measured(SMALL, "f16", 1, None)
    assert found.flash_s > 0 and found.plain_s > 0


def test_what_was_measured_is_kept(tmp_path, slow_flash):
    first = measured(SMALL, "f16", 2, tmp_path)
    assert measured(SMALL, "f16", 2, tmp_path) == first
    assert len(slow_flash.asked) == 1
    measured(SMALL, "f32", 2, tmp_path)
    measured(replace(SMALL, heads=4), "f16", 2, tmp_path)
    measured(SMALL, "f16", 1, tmp_path)
    assert len(slow_flash.asked) == 4


@pytest.mark.parametrize("content", ["", "[]", "{", '{"fingerprint": "x"}', "null"])
def test_a_broken_file_costs_a_measurement_and_nothing_else(tmp_path, slow_flash, content):
    (tmp_path / "attention.json").write_text(content)
    measured(SMALL, "f16", 2, tmp_path)
    assert len(slow_flash.asked) == 1
    measured(SMALL, "f16", 2, tmp_path)
    assert len(slow_flash.asked) == 1


def test_a_measurement_that_cannot_be_stored_is_used(tmp_path, slow_flash, caplog):
    (tmp_path / "file").touch()
    assert measured(SMALL, "f16", 2, tmp_path / "file") == slow_flash.found
    assert "measured again" in caplog.text


def test_another_library_is_measured_anew(tmp_path, slow_flash):
    measured(SMALL, "f16", 2, tmp_path)
    path = tmp_path / "attention.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "fingerprint": "other"}))
    measured(SMALL, "f16", 2, tmp_path)
    assert len(slow_flash.asked) == 2


@pytest.fixture
def plan(f32_model):
    """The plan of a model with keys and values of a usual size."""
    settings = ModelSettings(context=512)
    header = read_header(f32_model)
    made = plan_context(settings, header, weight_bytes=0, available_bytes=1 << 34)
    return replace(made, pool_tokens=LONG, kv_bytes_per_token=32 << 10)


def test_a_little_is_noise():
    assert not Attention(flash_s=0.003, plain_s=0.001).flash_pays
    assert Attention(flash_s=0.001, plain_s=0.0009).flash_pays


def test_it_is_not_measured_where_it_cannot_matter(f32_model, plan, slow_flash):
    header = read_header(f32_model)
    assert costs(header, replace(plan, pool_tokens=2048), None, None) is None
    assert costs(header, replace(plan, kv_bytes_per_token=4096), None, None) is None
    assert costs(header, replace(plan, kv_type="q8_0"), None, None) is None
    assert slow_flash.asked == []
    assert costs(header, plan, None, None) == slow_flash.found


@pytest.mark.parametrize("error", [BackendUnavailable("gone"), OSError("no space left")])
def test_a_measurement_that_fails_leaves_the_choice_to_the_library(
    f32_model, plan, monkeypatch, error
):
    def fail(heads, kv_type, threads):
        raise error

    monkeypatch.setattr(attention, "_measure", fail)
    assert costs(read_header(f32_model), plan, None, None) is None


def test_heads_are_read_from_the_header(f32_model):
    heads = heads_of(read_header(f32_model))
    assert heads is not None
    assert heads.heads % heads.kv_heads == 0 and heads.key_length == heads.value_length


def test_a_model_is_loaded_with_the_choice(long_model, load, slow_flash, monkeypatch):
    monkeypatch.setattr(attention, "LEAST_TOKEN_BYTES", 1)
    settings = {"flash_attention": None, "kv_type": "f16"}
    runner = load(long_model, **settings).runner
    assert runner.plan.flash_attention == 1 and runner.store.by_channel is False
    slow_flash.found = Attention(flash_s=0.001, plain_s=0.002)
    assert load(long_model, **settings).runner.plan.flash_attention == -1
    assert load(long_model, flash_attention=True, kv_type="f16").runner.plan.flash_attention == 1
    assert load(long_model, flash_attention=False, kv_type="f16").runner.plan.flash_attention == 0


@pytest.mark.parametrize("context", [LONG, None])
def test_the_choice_takes_nothing_of_the_context(
    long_model, load, slow_flash, monkeypatch, context
):
    """Without flash attention the products of a step use memory for each cell."""
    header = read_header(long_model)
    token = header.kv_bytes_per_token("f16", "f16")
    room = weight_bytes(header) + COMPUTE_BYTES + 2 * LONG * token
    settings = {"flash_attention": None, "kv_type": "f16", "context": context, "max_sessions": 1}
    monkeypatch.setattr(attention, "LEAST_TOKEN_BYTES", 1)
    monkeypatch.setattr("hearth.backends.llamacpp.load.available_bytes", lambda: room)
    runner = load(long_model, **settings, memory_fraction=1.0).runner
    assert len(slow_flash.asked) == 1
    assert runner.info.context == LONG and runner.plan.flash_attention == -1


@pytest.mark.parametrize(
    ("rounds", "found"),
    [
        ([(2.0, 3.0), (2.1, 2.9)], (2.0, 2.9)),
        ([(200.0, 3.0), (2.0, 3.0), (2.1, 3.1)], (2.0, 3.0)),
        ([(2.0, 3.0), (2.0, 90.0), (9.0, 3.0), (2.2, 3.0)], (2.0, 3.0)),
    ],
)
def test_what_others_disturbed_is_measured_again(rounds, found):
    left = iter(rounds)
    assert attention.steady(lambda: next(left)) == found
    assert next(left, None) is None


def test_where_others_never_rest_nothing_is_measured():
    left = itertools.count(1)
    with pytest.raises(Busy):
        attention.steady(lambda: (2.0 ** -next(left), 1.0))
    assert next(left) == 6

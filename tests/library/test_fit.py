"""Whether a model fits: the states, what there is room for, the disk, and the speed."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from async_tests import in_loop
from gguf_builder import tiny_llama
from hearth.app.library import bandwidth as bandwidths
from hearth.app.library import fit as fits
from hearth.app.library.bandwidth import (
    Bandwidth,
    known_bandwidth,
    measure_bandwidth,
    measured_bandwidth,
)
from hearth.app.library.catalogue import Shape, load_catalogue
from hearth.app.library.fit import (
    USUAL_CONTEXT,
    FileFacts,
    GuessedFacts,
    Room,
    facts_of,
    fit_of_download,
    fit_of_header,
    room_here,
    shape_for,
)
from hearth.app.library.hub import Repository
from hearth.app.machine import this_machine
from hearth.backends.contract.models import ModelSettings
from hearth.backends.errors import DoesNotFit, InvalidParameter
from hearth.backends.llamacpp.params import plan_context
from hearth.quant.gguf import preflight

GB = 10**9
SETTINGS = ModelSettings()
ROOM = Room(free_bytes=12 * GB, total_bytes=16 * GB, disk_free_bytes=100 * GB)
FACTS = FileFacts(
    5 * GB, parameters=8_000_000_000, context=40_960, shape=Shape(32, kv_heads=8, head_size=128)
)
SPEED = Bandwidth(20e9, 2, "a processor", "2026-11-21")


@pytest.fixture(scope="module")
def header(tmp_path_factory):
    """4 KiB of keys and values a token in f16."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return preflight.check(
        tiny_llama(path, hidden=512, heads=8, kv_heads=8, layers=2, context=65_536)
    )


@pytest.mark.parametrize(
    ("free", "total", "state"),
    [
        (32 * GB, 64 * GB, "fits"),
        (8 * GB, 16 * GB, "tight"),
        (4 * GB, 16 * GB, "cannot"),
        (4 * GB, 4 * GB, "cannot"),
    ],
)
def test_states_of_a_download(free, total, state):
    found = fit_of_download(FACTS, SETTINGS, replace(ROOM, free_bytes=free, total_bytes=total))
    assert found.state == state
    assert found.context == USUAL_CONTEXT
    assert found.is_usable == (state != "cannot")
    assert found.reason.endswith(".")
    assert found.to_json()["state"] == state


def test_weights_that_do_not_stay_in_memory_are_slow():
    facts = FileFacts(30 * GB, parameters=70_000_000_000, context=256)
    # The worker plans with 256 MiB beside weights, keys and values, and this model takes more.
    all_of_it = ModelSettings(memory_fraction=1.0)
    found = fit_of_download(facts, all_of_it, Room(30 * GB + (400 << 20), 64 * GB, 100 * GB))
    assert found.use.mapped
    assert found.state == "slow" and "disk" in found.reason
    assert found.is_usable


def test_other_programs_are_named_where_they_are_in_the_way():
    small = fit_of_download(FACTS, SETTINGS, replace(ROOM, free_bytes=4 * GB))
    assert "other programs" in small.reason
    never = fit_of_download(FACTS, SETTINGS, replace(ROOM, free_bytes=4 * GB, total_bytes=6 * GB))
    assert "other programs" not in never.reason


def test_the_largest_context_is_the_one_that_the_worker_would_plan(header):
    room = Room(free_bytes=500 << 20, total_bytes=16 * GB)
    found = fit_of_header(header, SETTINGS, room)
    weights = sum(tensor.nbytes for tensor in header.all_tensors)
    plan = plan_context(SETTINGS, header, weight_bytes=weights, available_bytes=room.free_bytes)
    assert 0 < found.largest_context == plan.context < header.context_length
    assert found.use.uncertain == 0
    more = fit_of_header(header, ModelSettings(context=plan.context), room)
    assert more.state != "cannot"
    most = fit_of_header(header, ModelSettings(context=plan.context + 256), room)
    assert most.state == "cannot" and f"{plan.context:,}" in most.reason


def test_a_context_beyond_the_trained_one_is_planned_as_well(header):
    found = fit_of_header(header, ModelSettings(context=100_000), ROOM)
    assert found.context == found.largest_context == 100_000


def test_fewer_bytes_for_keys_and_values_need_less(header):
    needs = [
        fit_of_header(header, ModelSettings(context=65_536, kv_type=kind), ROOM).use.needed
        for kind in ("f32", "f16", "q8_0", "q4_0")
    ]
    assert needs == sorted(needs, reverse=True) and len(set(needs)) == 4


def test_a_setting_that_cannot_be_honoured_is_refused(header):
    narrow = FileFacts(GB, shape=Shape(2, kv_heads=1, head_size=80))
    with pytest.raises(InvalidParameter):
        fit_of_download(narrow, ModelSettings(kv_type="q8_0"), ROOM)
    with pytest.raises(DoesNotFit):
        fit_of_header(header, ModelSettings(context=8192, kv_budget_bytes=1 << 20), ROOM)


def test_a_kv_budget_bounds_the_context(header):
    found = fit_of_header(header, ModelSettings(kv_budget_bytes=8 << 20), ROOM)
    assert found.context == found.largest_context == 1280


def test_the_disk_is_a_matter_of_its_own():
    small = replace(ROOM, disk_free_bytes=4 * GB)
    found = fit_of_download(FACTS, SETTINGS, small)
    assert found.state in ("fits", "tight")
    assert found.fits_on_disk is False and not found.is_usable
    assert "disk" in found.words
    assert fit_of_download(FACTS, SETTINGS, replace(ROOM, disk_free_bytes=None)).is_usable


def test_what_is_guessed_is_said(header):
    known = fit_of_download(FACTS, SETTINGS, ROOM)
    guessed = fit_of_download(FileFacts(5 * GB), SETTINGS, ROOM)
    assert 0 < known.use.uncertain < guessed.use.uncertain
    assert "about" in guessed.words
    assert "about" not in fit_of_header(header, SETTINGS, ROOM).words


def test_a_speed_comes_with_its_source_or_not_at_all(header):
    assert fit_of_header(header, SETTINGS, ROOM).speed is None
    found = fit_of_download(FACTS, SETTINGS, replace(ROOM, bandwidth=SPEED)).speed
    assert found is not None and found.is_limit
    assert "20.0 GB/s" in found.source and "2026-11-21" in found.source
    assert 0 < found.full_tok_per_s < found.tok_per_s


def test_an_encoder_has_no_speed_of_generation(header, monkeypatch):
    monkeypatch.setattr(fits, "_LEAST_READ_BYTES", 1)
    room = replace(ROOM, bandwidth=SPEED)
    names = {"general.architecture": "bert", "bert.context_length": 512}
    keys = {key.replace("llama.", "bert."): value for key, value in header.metadata.items()}
    encoder = replace(header, metadata={**keys, **names})
    assert encoder.is_encoder and fit_of_header(header, SETTINGS, room).speed is not None
    assert fit_of_header(encoder, SETTINGS, room).speed is None
    entries = {entry.purpose: entry for entry in load_catalogue().entries}
    for purpose, entry in entries.items():
        speed = fit_of_download(facts_of(5 * GB, entry), SETTINGS, room).speed
        assert (speed is None) == (purpose in ("embedding", "reranker")), purpose


def test_weights_that_caches_hold_get_no_estimate():
    room = replace(ROOM, bandwidth=SPEED)
    small = replace(FACTS, active_parameters=FACTS.parameters // 1000)
    assert fit_of_download(small, SETTINGS, room).speed is None


def test_experts_that_a_token_does_not_use_are_not_read():
    room = replace(ROOM, bandwidth=SPEED)
    dense = fit_of_download(FACTS, SETTINGS, room).speed
    sparse = fit_of_download(
        replace(FACTS, active_parameters=FACTS.parameters // 8), SETTINGS, room
    ).speed
    assert sparse.tok_per_s == pytest.approx(8 * dense.tok_per_s)


def test_json_has_null_for_what_is_not_known(header):
    facts = fit_of_header(header, SETTINGS, replace(ROOM, disk_free_bytes=None)).to_json()
    for name in ("vram_bytes", "disk_free_bytes", "fits_on_disk", "speed"):
        assert facts[name] is None
    assert facts["needed_bytes"] <= facts["peak_bytes"]
    assert facts["parts_bytes"]["weights"] > 0


def test_the_catalogue_and_the_hub_together():
    entry = load_catalogue().get("qwen3-0.6b")
    repository = Repository("a/b", "main", "0" * 40, False, "", (), 600_000_000, 32_768)
    facts = facts_of(700_000_000, entry, repository)
    assert (facts.parameters, facts.context) == (600_000_000, 32_768)
    assert facts.shape == Shape(28, 8, 128)
    shape = shape_for(facts)
    assert shape.kv_bytes_per_token("f16", "f16") == 28 * 8 * 128 * 4
    assert facts_of(700_000_000, None, repository).shape is None
    guessed = GuessedFacts(shape, 4096)
    assert guessed.value("unknown.attention.key_length") == 128
    assert guessed.value("unknown.attention.sliding_window", 7) == 7


def test_this_machine_has_room(tmp_path):
    room = room_here(tmp_path / "later")
    assert 0 < room.free_bytes <= room.total_bytes
    assert room.disk_free_bytes > 0
    assert room_here().disk_free_bytes is None


def test_bandwidth_is_measured_in_a_child_and_kept(tmp_path, monkeypatch):
    machine = this_machine()
    assert known_bandwidth(tmp_path, machine) is None
    monkeypatch.setattr(bandwidths, "_QUIET_CORES", 1e9)
    found = measure_bandwidth(tmp_path, machine, size_bytes=1 << 20)
    assert found.bytes_per_s > 0 and not found.is_busy
    assert known_bandwidth(tmp_path, machine) == found
    assert known_bandwidth(tmp_path, replace(machine, cpu="another")) is None
    (tmp_path / "bandwidth.json").write_text("{")
    assert known_bandwidth(tmp_path, machine) is None


@in_loop
async def test_bandwidth_is_measured_beside_an_event_loop_whose_signals_are_its_own(
    tmp_path, monkeypatch
):
    machine = this_machine()
    monkeypatch.setattr(bandwidths, "_QUIET_CORES", 1e9)
    before = signal.getsignal(signal.SIGINT)
    found = await measured_bandwidth(tmp_path, machine, size_bytes=1 << 20)
    assert signal.getsignal(signal.SIGINT) is before
    assert found.bytes_per_s > 0 and known_bandwidth(tmp_path, machine) == found


def test_a_busy_machine_is_measured_again(tmp_path, monkeypatch):
    answer = {"bytes_per_s": 5e9, "cores_elsewhere": 1.5}
    monkeypatch.setattr(bandwidths, "run_job", lambda *_: answer)
    machine = this_machine()
    found = measure_bandwidth(tmp_path, machine)
    assert found.is_busy and "busy" in found.source
    assert known_bandwidth(tmp_path, machine) is None
    room = replace(ROOM, bandwidth=found)
    assert not fit_of_download(FACTS, SETTINGS, room).speed.is_limit
    answer["bytes_per_s"] = 4e9
    assert measure_bandwidth(tmp_path, machine) == found  # The higher of two disturbed figures.
    answer["bytes_per_s"], answer["cores_elsewhere"] = 4.5e9, 0.0
    quiet = measure_bandwidth(tmp_path, machine)
    assert quiet.bytes_per_s == 4.5e9 and known_bandwidth(tmp_path, machine) == quiet

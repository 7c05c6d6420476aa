"""Which runner opens a model where nobody says: by its kind, the machine and what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gguf_builder import tiny_llama
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.errors import HearthError, UnsupportedModel
from hearth.backends.native.footprint import least_bytes
from hearth.backends.native.gguf_model import read_gguf_config
from hearth.backends.native.model_folder import weight_bytes
from hearth.backends.worker.choice import Machine, choose, not_native
from hearth.backends.worker.footprint import Footprints
from hearth.backends.worker.runners import open_model
from hearth.backends.worker.speeds import FILE, Measured, Speed, Speeds, kind_of
from hearth.quant.gguf import preflight
from hearth.quant.gguf.types import TensorType
from hearth.quant.stored import STAYS_PACKED
from model_folders import write_folder
from model_shapes import SHAPES
from random_models import write_model

PROCESSOR = Machine(is_apple=False, has_cuda=False, has_torch=True, has_llamacpp=True)
CARD = replace(PROCESSOR, has_cuda=True)
APPLE = replace(PROCESSOR, is_apple=True)
SLOW, FAST = Speed(100.0, 10.0), Speed(300.0, 30.0)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def kind(gguf: Path) -> str:
    return kind_of(preflight.check(gguf))


def chosen(
    path: Path, machine: Machine, cache: Path | None = None, **settings: object
) -> tuple[str, str]:
    spec = ModelSpec(str(path), settings=ModelSettings(**settings))  # type: ignore[arg-type]
    found = choose(spec, cache, machine)
    return found.runner, found.reason


@pytest.mark.parametrize("machine", [PROCESSOR, CARD, APPLE], ids=["cpu", "cuda", "apple"])
def test_safetensors_are_for_the_native_runner(machine: Machine, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    assert chosen(folder, machine)[0] == "native"
    assert chosen(folder / "model.safetensors", machine)[0] == "native"


def test_a_gguf_goes_by_the_device(gguf: Path) -> None:
    assert chosen(gguf, CARD) == ("native", "PyTorch has a CUDA card here")
    assert chosen(gguf, APPLE)[0] == "llamacpp"
    assert chosen(gguf, PROCESSOR)[0] == "llamacpp"
    assert chosen(gguf, CARD, gpu_layers=0)[0] == "llamacpp"


def test_a_family_that_the_native_runner_does_not_know_is_not_given_to_it(
    gguf: Path, tmp_path: Path
) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(gguf.read_bytes().replace(b"llama", b"bloom"))
    runner, reason = chosen(path, CARD)
    assert runner == "llamacpp" and "bloom" in reason


def test_on_a_processor_the_measured_speed_decides(gguf: Path, kind: str, tmp_path: Path) -> None:
    speeds = Speeds(tmp_path)
    assert "doctor --measure" in chosen(gguf, PROCESSOR, tmp_path)[1]
    speeds.put(Measured("Q2_K", FAST, SLOW, "2026-11-21"))
    assert chosen(gguf, PROCESSOR, tmp_path) == (
        "llamacpp",
        f"{kind} models were not measured here (hearth doctor --measure)",
    )
    for llamacpp, native, best in ((FAST, SLOW, "llamacpp"), (SLOW, FAST, "native")):
        speeds.put(Measured(kind, llamacpp, native, "2026-11-21"))
        runner, reason = chosen(gguf, PROCESSOR, tmp_path)
        assert runner == best
        assert "300" in reason and "30.0" in reason and "2026-11-21" in reason
    assert [found.kind for found in speeds.all()] == sorted([kind, "Q2_K"])


def test_with_vnni_the_native_runner_has_what_its_kernels_multiply(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modern = replace(PROCESSOR, instructions="avx512")
    assert chosen(gguf, modern) == ("llamacpp", "the native runner has no kernel for F32")
    packed = write_model("tiny-llama", "q4_k_m", tmp_path / "packed.gguf")
    assert chosen(packed, modern) == (
        "native",
        "its kernels are the faster ones with AVX-512 VNNI",
    )
    experts = write_model("tiny-experts", "q4_k_m", tmp_path / "experts.gguf")
    assert chosen(experts, modern) == chosen(packed, modern)
    reason = "mixtures of experts are not measured here (hearth doctor --measure)"
    for path in (packed, experts):
        assert chosen(path, replace(PROCESSOR, instructions="avx2"))[0] == "llamacpp"
    assert chosen(packed, modern, kv_type="q8_0")[0] == "native"
    assert chosen(packed, modern, kv_type_v="q4_0") == ("llamacpp", "only it has kv_type_v q4_0")
    Speeds(tmp_path).put(Measured(kind_of(preflight.check(packed)), FAST, SLOW, "2026-11-24"))
    assert chosen(packed, modern, tmp_path)[0] == "llamacpp"
    monkeypatch.setattr("hearth.backends.native.footprint.available_bytes", lambda: 1 << 16)
    runner, reason = chosen(packed, modern)
    assert runner == "llamacpp" and "in the file" in reason


def test_a_difference_within_the_noise_decides_nothing(
    gguf: Path, kind: str, tmp_path: Path
) -> None:
    Speeds(tmp_path).put(Measured(kind, Speed(100, 10), Speed(102, 10.2), "2026-11-21"))
    assert chosen(gguf, PROCESSOR, tmp_path)[0] == "llamacpp"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"version": 9}', '{"version": 1, "machine": {"cpu": "other"}, "kinds": []}'],
)
def test_figures_of_another_machine_or_a_damaged_file_count_as_none(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / FILE).write_text(text)
    assert Speeds(tmp_path).all() == []


def test_a_speed_of_nothing_is_no_measurement(tmp_path: Path) -> None:
    Speeds(tmp_path).put(Measured("Q4_K", FAST, SLOW, "2026-11-21"))
    document = json.loads((tmp_path / FILE).read_text())
    document["kinds"][0]["native"]["decode"] = 0
    (tmp_path / FILE).write_text(json.dumps(document))
    assert Speeds(tmp_path).all() == []


def test_what_only_one_runner_can_do_decides_before_speed(
    gguf: Path, kind: str, tmp_path: Path
) -> None:
    assert chosen(gguf, PROCESSOR, deterministic=True) == ("native", "only it has deterministic")
    assert chosen(gguf, PROCESSOR, dtype="bf16")[0] == "native"
    Speeds(tmp_path).put(Measured(kind, SLOW, FAST, "2026-11-21"))
    assert chosen(gguf, PROCESSOR, tmp_path, kv_type="q4_0")[0] == "llamacpp"
    assert chosen(gguf, CARD, kv_type="q8_0") == ("llamacpp", "only it has kv_type q8_0")
    Speeds(tmp_path).put(Measured(kind, FAST, SLOW, "2026-11-21"))
    for machine in (PROCESSOR, CARD):
        found = chosen(gguf, machine, tmp_path, kv_type="f16", kv_type_v="fp8")
        assert found == ("native", "only it has kv_type_v fp8")


def test_without_one_of_the_libraries_it_is_the_other(gguf: Path) -> None:
    assert chosen(gguf, replace(PROCESSOR, has_llamacpp=False))[0] == "native"
    assert chosen(gguf, replace(CARD, has_torch=False))[0] == "llamacpp"


def test_what_was_asked_for_wins_or_says_what_can(gguf: Path, tmp_path: Path) -> None:
    for runner in ("llamacpp", "native"):
        spec = ModelSpec(str(gguf), backend=runner)
        assert choose(spec, None, CARD).runner == runner
    folder = write_folder(tmp_path / "model")
    with pytest.raises(UnsupportedModel, match="--backend native"):
        open_model(ModelSpec(str(folder), backend="llamacpp"), tmp_path)


def test_llamacpp_refuses_settings_of_the_native_runner_and_says_what_to_use(
    gguf: Path, tmp_path: Path
) -> None:
    for name, value, cure in (
        ("dtype", "bf16", "--backend native"),
        ("deterministic", True, "kv_type f32"),
    ):
        settings = ModelSettings(**{name: value})
        with pytest.raises(HearthError, match=cure) as caught:
            open_model(ModelSpec(str(gguf), backend="llamacpp", settings=settings), tmp_path)
        assert caught.value.data["param"] == name


def test_room_is_set_aside_for_the_runner_that_is_chosen(
    gguf: Path, kind: str, tmp_path: Path
) -> None:
    spec = ModelSpec(str(gguf))
    of_llamacpp = Footprints(tmp_path).of(spec)
    assert of_llamacpp == Footprints().of(replace(spec, backend="llamacpp"))
    Speeds(tmp_path).put(Measured(kind, SLOW, FAST, "2026-11-21"))
    assert Footprints(tmp_path).of(spec) == Footprints().of(replace(spec, backend="native"))
    folder = write_folder(tmp_path / "model")
    assert (Footprints().of(ModelSpec(str(folder))) or 0) > 64 << 20
    assert Footprints().of(ModelSpec(str(folder), backend="llamacpp")) is None


@pytest.mark.parametrize("has_triton", [True, False])
def test_a_packed_gguf_that_does_not_fit_as_the_card_holds_it_is_for_llama_cpp(
    has_triton: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are unpacked where no kernel multiplies them."""
    monkeypatch.setattr("hearth.backends.native.footprint.is_installed", lambda: has_triton)
    path = write_model(SHAPES["tiny-llama"], "q8_0", tmp_path / "packed.gguf")
    header = preflight.check(path)
    stored = [tensor.stored for tensor in header.all_tensors]
    packed, unpacked = (weight_bytes(stored, "bf16", packed=kept) for kept in (STAYS_PACKED, set()))
    beside = least_bytes(read_gguf_config(header)[1], ModelSettings(context=64))

    def at(free_bytes: int) -> tuple[str, str]:
        card = replace(CARD, card_free_bytes=free_bytes)
        return chosen(path, card, context=64, memory_fraction=1.0)

    weights = packed if has_triton else unpacked
    assert packed < unpacked and at(weights + beside)[0] == "native"
    runner, reason = at(weights + beside - 1)
    assert runner == "llamacpp" and "of the card for the weights and a context" in reason


@pytest.mark.parametrize(
    ("settings", "runner"),
    [
        ({"gpu_layers": 1}, "llamacpp"),
        ({"gpu_layers": 2}, "llamacpp"),
        ({"gpu_layers": 3}, "native"),
        ({"gpu_layers": 99}, "native"),
    ],
)
def test_some_layers_on_a_card_are_for_llama_cpp(
    gguf: Path, settings: dict[str, int], runner: str
) -> None:
    """The model has two blocks and an output."""
    assert chosen(gguf, CARD, **settings)[0] == runner


def test_layers_on_a_gpu_that_pytorch_does_not_see_are_for_llama_cpp(
    gguf: Path, kind: str, tmp_path: Path
) -> None:
    Speeds(tmp_path).put(Measured(kind, SLOW, FAST, "2026-11-21"))
    assert chosen(gguf, PROCESSOR, tmp_path)[0] == "native"
    assert chosen(gguf, PROCESSOR, tmp_path, gpu_layers=99) == (
        "llamacpp",
        "only it has gpu_layers 99",
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"extra": {"llama.attention.temperature_scale": 0.1}}, "attention.temperature_scale"),
        ({"extra": {"llama.attention.causal": False}}, "attention.causal"),
        ({"extra": {"llama.rope.scaling.factor": -2.0}}, "rope.scaling.factor"),
        ({"pre": "made-up"}, "made-up"),
    ],
    ids=["variant", "not causal", "damaged", "vocabulary"],
)
def test_what_loading_would_refuse_is_not_chosen(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tiny_llama(tmp_path / "variant.gguf", **options)
    runner, reason = chosen(path, CARD)
    assert runner == "llamacpp" and said in reason and str(tmp_path) not in reason
    with pytest.raises(HearthError, match=said):
        open_model(ModelSpec(str(path), backend="native"), tmp_path)


def test_a_type_of_matrix_that_cannot_be_unpacked_is_not_chosen(gguf: Path) -> None:
    header = preflight.check(gguf)
    assert not_native(header) == ""
    first = next(one for one in header.tensors if len(one.shape) > 1)
    packed = replace(first, type=TensorType.Q2_0)
    assert "Q2_0" in not_native(replace(header, tensors=(packed, *header.tensors)))


def test_a_model_that_the_card_has_no_room_for_is_not_chosen(gguf: Path) -> None:
    stored = [tensor.stored for tensor in preflight.check(gguf).all_tensors]
    weights = weight_bytes(stored, "bf16", packed=frozenset())
    _, config = read_gguf_config(preflight.check(gguf))
    least = int((weights + least_bytes(config, ModelSettings())) / 0.9) + 1
    assert chosen(gguf, replace(CARD, card_free_bytes=least))[0] == "native"
    full = replace(CARD, card_free_bytes=least - 3)
    runner, reason = chosen(gguf, full)
    assert runner == "llamacpp" and "0.1 GB are free" in reason
    assert chosen(gguf, replace(CARD, card_free_bytes=least), context=8192)[0] == "llamacpp"
    assert chosen(gguf, full, gpu_layers=0)[0] == "llamacpp"
    assert chosen(gguf, full, deterministic=True)[0] == "native"
    assert chosen(gguf, replace(full, has_llamacpp=False))[0] == "native"


def test_the_choice_is_made_without_torch(gguf: Path) -> None:
    code = (
        "import sys\n"
        "from hearth.backends.worker.choice import Machine, choose\n"
        "from hearth.backends.contract.models import ModelSpec\n"
        "card = Machine(False, True, True, True, 1 << 40)\n"
        f"found = choose(ModelSpec({str(gguf)!r}), None, card)\n"
        "assert found.runner == 'native', found\n"
        "assert not {'torch', 'numpy', 'llama_cpp'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

"""Models on the native runner, through host and worker as any front end has them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

import tokenizer_folders
from gguf_builder import tiny_llama
from hearth.backends.contract.loaded import ModelInfo
from hearth.backends.contract.messages import Message
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.errors import InvalidParameter, UnsupportedModel
from hearth.backends.machine.local_socket import HostPlace
from hosts import attached, collect
from model_folders import CONFIG, write_folder

GREEDY = SamplingParams(temperature=0.0)
QUICK = ModelSettings(threads=1, batch_threads=1, kv_type="f32")
TEMPLATE = "{% for m in messages %}<s>{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat model with random weights, in three files."""
    path = tmp_path_factory.mktemp("model") / "Tiny-0.1B"
    values = {**CONFIG, "vocab_size": 640}
    files = {"tokenizer_config": {"chat_template": TEMPLATE, "eos_token": "</s>"}, "config": values}
    tokenizer_folders.write_folder(path, tokenizer_folders.byte_level(), **files)
    return write_folder(path, 3, "F32", seed=7, **values)


def answers(
    place: HostPlace, spec: ModelSpec, *requests: Request
) -> tuple[ModelInfo, list[tuple[str, list[int]]]]:
    """What the model is, and text and ids of each answer."""

    async def main() -> tuple[ModelInfo, list[tuple[str, list[int]]]]:
        async with attached(place) as host:
            backend = host.backend(spec)
            info = await backend.info()
            found = [await collect(backend.generate(request)) for request in requests]
            return info, [(text, ids) for text, ids, _ in found]

    return asyncio.run(main())


def test_a_folder_of_safetensors_chats_and_nobody_has_to_say_with_what(
    folder: Path, place: HostPlace
) -> None:
    spec = ModelSpec(str(folder), "Tiny-0.1B", settings=QUICK)
    chat = Request(messages=(Message("user", "hello"),), sampling=GREEDY, max_tokens=8)
    text = Request(text="hello", sampling=GREEDY, max_tokens=8, ignore_eos=True)
    info, said = answers(place, spec, chat, text, text)
    assert (info.backend, info.architecture, info.context) == ("native", "llama", 512)
    assert info.has_chat_template and info.name == "Tiny-0.1B"
    assert said[1] == said[2] and len(said[1][1]) == 8


def test_both_runners_say_the_same_of_one_gguf(place: HostPlace, tmp_path: Path) -> None:
    spec = ModelSpec(str(tiny_llama(tmp_path / "tiny.gguf")), settings=QUICK)
    exact = replace(spec, settings=replace(QUICK, flash_attention=False), backend="llamacpp")
    request = Request(text="the", sampling=GREEDY, max_tokens=16, ignore_eos=True)
    ours, said = answers(place, replace(spec, backend="native"), request)
    theirs, expected = answers(place, exact, request)
    assert (ours.backend, theirs.backend) == ("native", "llamacpp")
    assert said == expected


def test_what_a_runner_cannot_do_is_refused_before_it_is_loaded(
    folder: Path, place: HostPlace
) -> None:
    request = Request(text="the", max_tokens=1)
    with pytest.raises(UnsupportedModel, match="--backend native"):
        answers(place, ModelSpec(str(folder), backend="llamacpp"), request)
    with pytest.raises(InvalidParameter, match="q4_0"):
        answers(place, ModelSpec(str(folder), settings=replace(QUICK, kv_type="q4_0")), request)


def test_deterministic_computes_everything_with_one_number_of_threads(
    folder: Path, place: HostPlace
) -> None:
    request = Request(text="the", sampling=GREEDY, max_tokens=2, ignore_eos=True)
    settings = ModelSettings(batch_threads=1, deterministic=True)
    info, _ = answers(place, ModelSpec(str(folder), settings=settings), request)
    assert (info.threads, info.batch_threads) == (1, 1)
    with pytest.raises(InvalidParameter, match="threads is 2 and batch_threads 1"):
        answers(place, ModelSpec(str(folder), settings=replace(settings, threads=2)), request)

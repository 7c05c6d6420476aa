"""Streaming with attention sinks on both runners: logits equal those of a reference that computes
everything from scratch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from driven import Driven
from hearth.backends.contract.models import ModelSettings
from hearth.backends.contract.rope import RopeChange
from hearth.backends.engine.streaming import Streaming
from hearth.backends.llamacpp.load import Loaded
from hearth.backends.llamacpp.rope import no_streaming
from hearth.quant.gguf.preflight import check
from hearth.quant.json_fields import read_fields
from native_decoders import decoder_of, family_and_config
from native_runners import runner_of
from speakers import drain, generation
from streaming_reference import Recorded, streaming_logits
from tiny_checkpoints import VOCABULARY, tiny_checkpoint
from tiny_ggufs import write_gguf

CONTEXT, SINKS = 128, 4
Load = Callable[..., Loaded]


def text_of(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()


def gguf_of(folder: Path) -> Path:
    family, _ = family_and_config(read_fields(folder / "config.json"))
    return write_gguf(folder / "tiny.gguf", "llama", family, decoder_of(folder))


def recorded(runner: Driven, text: list[int], sinks: int = SINKS) -> Recorded:
    """The runner's logits after each token of `text`."""
    streaming = Streaming.of(sinks, runner.info.context, runner.info.page)
    sequence = Recorded(text, streaming)
    engine = runner.engine()
    engine.submit(sequence)
    drain(engine)
    assert sequence.done and len(sequence.logits) == len(text)
    assert streaming.dropped(len(text) - 1) >= 4 * streaming.step, "several times"
    engine.kv.check_integrity()
    return sequence


@pytest.mark.parametrize("sinks", [0, 4, 21])
@pytest.mark.parametrize("chunk", [5, 64])
def test_llama_cpp_says_what_all_of_it_from_scratch_gives(
    load: Load, tmp_path: Path, chunk: int, sinks: int
) -> None:
    folder = tiny_checkpoint("llama2", tmp_path)
    runner = load(gguf_of(folder), context=CONTEXT, max_batch_tokens=chunk).runner
    sequence = recorded(runner, text_of(330), sinks)
    expected = streaming_logits(decoder_of(folder), text_of(330), sequence.streaming)
    assert (torch.stack(sequence.logits) - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("family", "sinks", "chunk"),
    [("llama2", 0, 5), ("llama2", 4, 64), ("llama2", 21, 5), ("llama3", 4, 64), ("qwen3", 4, 64)],
)
def test_the_native_runner_says_what_all_of_it_from_scratch_gives(
    family: str, sinks: int, chunk: int, tmp_path: Path
) -> None:
    folder = tiny_checkpoint(family, tmp_path)
    settings = ModelSettings(context=CONTEXT, max_batch_tokens=chunk, kv_type="f32")
    sequence = recorded(runner_of(folder, settings), text_of(330), sinks)
    expected = streaming_logits(decoder_of(folder), text_of(330), sequence.streaming)
    assert (torch.stack(sequence.logits) - expected).abs().max() < 1e-4
    whole = replace(sequence.streaming, most=1000)
    unlike = streaming_logits(decoder_of(folder), text_of(330), whole)
    assert (unlike - expected).abs().max() > 1e-2, "what was forgotten makes a difference"


@pytest.mark.parametrize("backend", ["native", "llamacpp"])
def test_with_one_layer_what_stays_computed_again_gives_the_same(
    backend: str, load: Load, tmp_path: Path
) -> None:
    """In the only layer, a token's key depends on that token alone."""
    folder = tiny_checkpoint("llama2", tmp_path, num_hidden_layers=1)
    settings = ModelSettings(context=CONTEXT, kv_type="f32")
    runner = runner_of(folder, settings)
    if backend == "llamacpp":
        runner = load(gguf_of(folder), context=CONTEXT).runner
    text = text_of(300)
    sequence = recorded(runner, text)
    for computed in (150, 200, 299):
        gone = sequence.streaming.dropped(computed - 1)
        kept = sequence.streaming.kept(text[:computed], gone)
        assert len(kept) < computed
        again = Recorded(kept, replace(sequence.streaming, most=1000))
        engine = runner.engine()
        engine.submit(again)
        drain(engine)
        assert (again.logits[-1] - sequence.logits[computed - 1]).abs().max() < 1e-4


@pytest.mark.parametrize("backend", ["native", "llamacpp"])
def test_others_next_to_it_say_the_same_as_alone(backend: str, load: Load, tmp_path: Path) -> None:
    """Including a sequence that shares tokens that it forgets, and tokens that it keeps."""
    folder = tiny_checkpoint("llama2", tmp_path)
    settings = ModelSettings(context=CONTEXT, kv_type="f32", max_sessions=4, deterministic=True)
    runner = runner_of(folder, settings)
    if backend == "llamacpp":
        runner = load(gguf_of(folder), context=CONTEXT, max_sessions=4).runner
    prompts = [text_of(90), text_of(90), text_of(30)]
    streaming = Streaming.of(SINKS, runner.info.context, runner.info.page)

    def said(*which: int) -> list[list[int]]:
        engine = runner.engine()
        listeners = []
        for at in which:
            made, listener = generation(at, prompts[at], runner, tokens=(300, 30, 90)[at])
            made.streaming = streaming if at == 0 else None
            engine.submit(made)
            while not made.new_tokens:
                engine.run_once()
            listeners.append(listener)
        drain(engine)
        engine.kv.check_integrity()
        return [listener.ids for listener in listeners]

    assert said(0, 1, 2) == [*said(0), *said(1), *said(2)]


def test_models_whose_keys_cannot_be_moved_are_refused_by_name(tmp_path: Path, load: Load) -> None:
    def reason(family: str, architecture: str) -> str:
        (tmp_path / family).mkdir()
        folder = tiny_checkpoint(family, tmp_path / family)
        kind, _ = family_and_config(read_fields(folder / "config.json"))
        path = write_gguf(folder / "tiny.gguf", architecture, kind, decoder_of(folder))
        return no_streaming(check(path), RopeChange())

    assert "sliding window" in reason("gemma2", "gemma2")
    assert "longrope" in reason("phi3", "phi3")
    assert "YaRN" in reason("qwen3", "qwen3")
    assert "no positions" in reason("smollm3", "smollm3")
    assert not reason("llama3", "llama")

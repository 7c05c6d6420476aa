"""Graphs of steps are recorded, replayed and recorded again by the code that drives a card, over
operators that triton interprets or PyTorch has: a replay uses the memory of its recording.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

pytest.importorskip("triton", minversion="3.9")

from decode_reference import reference_decode
from driven import Driven
from hearth.backends.bench.engine_side import EngineSide
from hearth.backends.contract.models import ModelSettings
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.runner import StepPlan
from hearth.backends.engine.shortlist import ShortlistSpec
from hearth.backends.native import (
    decode_graphs,
    kv_pool,
    paged_attention,
    runner,
    split_attention,
    steps_ahead,
)
from hearth.backends.native.decode_graphs import Shape
from hearth.backends.native.heads import HeadWeights
from hearth.backends.native.heads_training import write_heads
from hearth.backends.native.models import layers, parts
from hearth.backends.native.prompt_graphs import PromptGraphs
from hearth.backends.native.weights import load_weights
from hearth.backends.native.workspace import (
    _GRAPH_BYTES,
    _SPLIT_BYTES,
    MOST_GRAPHS,
    MOST_PROMPT_GRAPHS,
    Workspace,
    graph_rows,
    partial_bytes,
    prompt_token_bytes,
)
from hearth.kernels.cuda.attention import Seen
from hearth.kernels.cuda.packings import CHUNK
from hearth.quant.families.table import family_of_hf
from hearth.quant.json_fields import read_fields
from hearth.quant.safetensors import SafetensorsFolder
from native_runners import loaded_of, runner_of
from peak_memory import Peak
from recorded_graphs import Recorder
from tiny_checkpoints import VOCABULARY, tiny_checkpoint, tiny_model

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="there is a card, see test_cuda.py"
)
KERNELS = (
    (split_attention, "attend_decode"),
    (kv_pool, "store_tokens"),
    (kv_pool, "finish_and_store"),
    (layers, "add_and_normalise"),
    (layers, "finish_heads"),
    (parts, "silu_up"),
)


@dataclass
class Both:
    """The same model with graphs and without, which compute the same steps."""

    recorder: Recorder
    graphs: Driven
    eager: Driven
    tokens: list[int] = field(
        default_factory=lambda: np.random.default_rng(0).integers(3, VOCABULARY, 4000).tolist()
    )

    def step(self, counts: Sequence[int], *, outputs: int = 1) -> None:
        """Compute `counts` more tokens of sequences (0: the sequence is not in the step), and
        require that both give similar logits.
        """
        found = [self._step(one, counts, outputs) for one in (self.graphs, self.eager)]
        for slot, wanted in found[1].items():
            near = 1e-5 * float(np.abs(wanted).max())
            np.testing.assert_allclose(found[0][slot], wanted, rtol=1e-5, atol=near)

    def _step(
        self, driven: Driven, counts: Sequence[int], outputs: int
    ) -> dict[int, NDArray[np.float32]]:
        rows = []
        for slot, count in enumerate(counts):
            if count:
                more = self.tokens[driven.cache.length(slot) + 100 * slot :][:count]
                rows.append(driven.row(slot, more, min(count, outputs)))
        result = driven.step(StepPlan(tuple(rows)))
        return {slot: logits.copy() for slot, logits in result.logits.items()}

    @property
    def replays(self) -> list[int]:
        """Number of replays of each graph, in the order of their recordings."""
        return [one.replays for one in self.recorder.graphs]


class OfACard(kv_pool.KvPool):
    """A pool that replaces its tensors by larger ones, as on a card."""

    @staticmethod
    def _grows_in_place(device: torch.device) -> bool:
        return False


Make = Callable[..., Both]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(runner, "KvPool", OfACard)

    def both(family: str = "llama3", *, triton: bool = False, **changes: Any) -> Both:
        """Make both models of `family`.

        Args:
            triton: use its interpreter where it can compute; otherwise PyTorch is used.
        """
        settings = ModelSettings(**{"kv_type": "f32", "context": 128, "max_sessions": 5, **changes})
        changed = {"num_hidden_layers": 1} if triton else {}
        tiny_checkpoint(family, tmp_path, max_position_embeddings=8192, **changed)
        recorder = Recorder()
        if triton:
            for module in (kv_pool, layers, paged_attention, parts, runner):
                monkeypatch.setattr(module, "has_triton", lambda device_type: True)
            for module, name in KERNELS:
                monkeypatch.setattr(module, name, recorder.kernel(getattr(module, name)))
        else:
            monkeypatch.setattr(split_attention, "attend_decode", reference_decode)
        of = [runner_of(tmp_path, settings, triton=True, records=one) for one in (recorder, None)]
        assert of[0].plan.graphs and not of[1].plan.graphs and of[1].plan.splits_decode
        return Both(recorder, *of)

    return both


def test_kernels_are_replayed_with_what_they_were_started_with(make: Make) -> None:
    both = make(triton=True, max_sessions=2)
    both.step([3, 2])
    for _ in range(3):
        both.step([1, 1])
    assert both.replays == [2]


@pytest.mark.parametrize("family", ["llama3", "gemma2", "gemma3", "phi3", "qwen3"])
def test_logits_of_replayed_steps_are_those_of_others(family: str, make: Make) -> None:
    both = make(family, kv_pool="static")
    both.step([30, 9, 0, 0, 17])
    for _ in range(4):
        both.step([1, 1, 0, 0, 1])  # Padded to four rows.
    # The first step is computed without a graph; the second is recorded and replayed.
    assert both.replays == [3]
    both.step([1, 3, 1, 0, 0])
    both.step([1, 1, 1, 1, 0])
    both.step([1, 1, 1, 1, 1])
    assert both.replays == [4]
    both.step([1, 1, 1, 1, 1])
    both.step([1, 0, 1, 1, 0])
    assert both.replays == [5, 1]
    both.graphs.cache.check_integrity()


def test_replayed_steps_give_the_states_that_logits_are_made_of(make: Make, tmp_path: Path) -> None:
    both = make()
    both.step([9, 5, 0, 0, 0])
    both.step([1, 1, 0, 0, 0])
    both.step([1, 1, 0, 0, 0])
    width = both.graphs.decoder.config.width
    weights = HeadWeights(torch.zeros(1, 1, width, width), torch.zeros(1, 1, width), None, None)
    write_heads(weights, tmp_path / "x.medusa.safetensors")
    for driven in (both.graphs, both.eager):
        driven.load_heads(tmp_path / "x.medusa.safetensors")
    assert len(both.graphs.graphs) == 0  # Recorded again.
    for _ in range(3):
        found = []
        for driven in (both.graphs, both.eager):
            rows = [driven.row(slot, [7 + slot], 1) for slot in range(3)]
            result = driven.step(StepPlan(tuple(rows)))
            logits = driven.decoder.logits(result.hidden).numpy()
            np.testing.assert_array_equal(logits, np.concatenate([*result.logits.values()]))
            found.append(result.hidden.clone())
        assert found[0].shape == (3, width)
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
    assert both.replays == [1, 2]


def test_sizes_are_recorded_when_they_come_again_and_only_for_single_tokens(make: Make) -> None:
    both = make()
    both.step([5, 5, 5, 0, 0])
    shapes = []
    for counts in ([1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]):
        both.step(counts)
        shapes.append(len(both.graphs.graphs))
        both.step(counts)
        shapes.append(len(both.graphs.graphs))
    assert shapes == [0, 1, 1, 2, 2, 3]
    assert list(both.graphs.graphs._graphs.recorded) == [
        Shape(1, 128),
        Shape(2, 128),
        Shape(4, 128),
    ]
    before = sum(both.replays)
    both.step([1, 2, 0, 0, 0])  # With the rest of a prompt,
    both.step([1, 1, 0, 0, 0], outputs=0)  # and without outputs.
    assert sum(both.replays) == before
    both.graphs.step(StepPlan((both.graphs.row(0, [7], 1, drafts=1),)))
    assert sum(both.replays) == before


def test_a_pool_that_has_grown_is_recorded_again(make: Make) -> None:
    both = make(context=64)
    both.step([15, 3, 0, 0, 0])
    for _ in range(3):
        both.step([1, 1, 0, 0, 0])
    pool, first = both.graphs.store, both.recorder.graphs[0]
    before, version, tensors = pool.capacity(0), pool.version, pool.layer(0)
    assert both.replays == [2]
    both.step([0, 0, 40, 30, 20])
    assert pool.capacity(0) > before and pool.version > version
    assert pool.layer(0)[0] is not tensors[0]
    for _ in range(2):
        both.step([1, 1, 0, 0, 0])
    # At once, and without an eager step before, because this shape has occurred.
    assert both.replays == [2, 2]
    # The old recordings would have given other results: they use the memory that the pool released.
    wanted = both.graphs.graphs._logits.clone()  # type: ignore[union-attr]
    first.replay()
    assert not torch.allclose(both.graphs.graphs._logits[:2], wanted[:2], atol=1e-3)  # type: ignore[union-attr,index]
    pool.shrink(0, 0)
    assert pool.version > version + 1 or pool.capacity(0) == before


def test_rows_that_only_pad_write_to_a_block_that_no_sequence_has(make: Make) -> None:
    both = make(context=64, max_sessions=3)
    pool = both.graphs.store
    both.step([15, 14, 13])
    for length in (15, 16, 17):
        before = [side.clone() for side in pool.layer(0)]
        both.step([1, 1, 1])
        tables = [both.graphs.cache.handle(slot)[0] for slot in range(3)]
        spare = pool.spare_block(0)
        assert spare not in {block for table in tables for block in table}
        places = {
            (table[at // 16], at % 16)
            for table, at in zip(tables, (length, length - 1, length - 2), strict=True)
        }
        for old, new in zip(before, pool.layer(0), strict=True):
            if old.shape == new.shape:
                changed = (old != new).any(-1).any(0).nonzero().tolist()
                assert set(map(tuple, changed)) <= places | {(spare, 0)}
    assert both.replays


def test_other_weights_are_recorded_again(make: Make, tmp_path: Path) -> None:
    both = make()
    both.step([9, 4, 0, 0, 0])
    for _ in range(3):
        both.step([1, 1, 0, 0, 0])
    reload_flipped(both, tmp_path / "other")
    both.step([1, 1, 0, 0, 0])
    assert both.replays == [2, 1]


def reload_flipped(both: Both, folder: Path) -> None:
    model = tiny_model("llama3", max_position_embeddings=8192)
    for weight in model.parameters():
        weight.data = weight.data.flip(0)
    model.save_pretrained(folder)
    family = family_of_hf(read_fields(folder / "config.json"))
    for driven in (both.graphs, both.eager):
        load_weights(
            driven.decoder, family, SafetensorsFolder(folder), torch.device("cpu"), mapped=False
        )


def test_longer_texts_have_graphs_of_more_parts(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_graphs, "GRAPH_KEYS", 256)
    both = make(context=1024, max_batch_tokens=256, max_sessions=2, kv_pool="static")
    both.step([250, 3])
    for _ in range(10):
        both.step([1, 1])
    both.step([0, 255])
    for _ in range(6):
        both.step([1, 1])
    graphs = both.graphs.graphs
    assert graphs is not None
    assert list(graphs._graphs.recorded) == [Shape(2, 256), Shape(2, 512)]
    parts = [buffers.seen[0].most // 256 for buffers, _ in graphs._graphs.recorded.values()]
    assert parts == [1, 2]


def test_steps_of_more_rows_or_keys_than_graphs_are_for(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_graphs, "MOST_GRAPHS", 2)
    both = make(max_sessions=4)
    both.step([3, 4, 5, 6])
    for count in (1, 2, 4):
        for _ in range(2):
            both.step([1] * count + [0] * (4 - count))
    graphs = both.graphs.graphs
    assert graphs is not None
    assert list(graphs._graphs.recorded) == [Shape(2, 128), Shape(4, 128)]
    config = both.graphs.decoder.config
    monkeypatch.setattr(decode_graphs, "GRAPH_PARTIAL_BYTES", partial_bytes(config, 4, 128) - 1)
    before = both.replays
    both.step([1, 1, 1, 1])
    assert both.replays == before


def test_what_cannot_be_recorded_is_computed_without_and_says_so(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    both = make()
    both.recorder.fails = "operation not permitted"
    both.step([3, 4, 0, 0, 0])
    for _ in range(3):
        both.step([1, 1, 0, 0, 0])
    graphs = both.graphs.graphs
    assert graphs is not None and graphs.refused == "operation not permitted" and len(graphs) == 0
    assert "operation not permitted" in caplog.text
    experts = make("mixtral").graphs.graphs
    assert experts is not None and "each expert" in experts.refused


def test_the_recorder_refuses_to_wait_for_the_device() -> None:
    numbers = torch.arange(4)
    for wait in (lambda: numbers.sum().item(), lambda: numbers.nonzero(), lambda: bool(numbers[0])):
        with pytest.raises(RuntimeError, match="not permitted"):
            Recorder().capture([wait])  # type: ignore[arg-type]


def test_shortlists_come_of_replayed_logits_in_one_copy(make: Make) -> None:
    both = make()
    both.step([9, 5, 0, 0, 0])
    for number in range(3):
        both.step([1, 1, 1, 0, 0])
        found = {}
        for driven in (both.graphs, both.eager):
            spec = ShortlistSpec(8, np.array([3, number + 4]))
            rows = [driven.row(slot, [5 + slot], 1, shortlist=spec) for slot in range(3)]
            result = driven.step(StepPlan(tuple(rows)))
            assert not result.logits and len(result.shortlists) == 3
            found[driven is both.eager] = [result.shortlists[slot] for slot in range(3)]
        for ours, wanted in zip(found[False], found[True], strict=True):
            assert ours.best == wanted.best and ours.ids.tolist() == wanted.ids.tolist()
            np.testing.assert_allclose(ours.values, wanted.values, rtol=1e-4, atol=1e-4)
            assert ours.log_sum == pytest.approx(wanted.log_sum, abs=1e-5)
            np.testing.assert_allclose(ours.row(), wanted.row(), rtol=1e-4, atol=1e-4)


class Greedy:
    """Greedy sessions on both runners, which must agree."""

    def __init__(self, both: Both, *prompts: int) -> None:
        self.both = both
        both.step([*prompts, *[0] * (5 - len(prompts))])
        self.tokens = {slot: 7 + slot for slot in range(len(prompts))}
        """The next token of each session."""

    @property
    def ahead(self) -> steps_ahead.StepsAhead:
        found = self.both.graphs.runner._ahead  # type: ignore[attr-defined]
        assert isinstance(found, steps_ahead.StepsAhead)
        return found

    @property
    def is_ahead(self) -> bool:
        return self.ahead._ahead is not None

    def step(self, *slots: int, fetches: bool = False) -> None:
        """Advance some sessions, by default all.

        Args:
            fetches: require that whole rows of logits agree, too.
        """
        found = []
        for driven in (self.both.graphs, self.both.eager):
            spec = ShortlistSpec(1, np.array([], np.int64))
            rows = [
                driven.row(slot, [self.tokens[slot]], 1, shortlist=spec)
                for slot in slots or self.tokens
            ]
            result = driven.step(StepPlan(tuple(rows)))
            assert not result.logits
            found.append(result.shortlists)
        for slot, ours in found[0].items():
            wanted = found[1][slot]
            assert (ours.best, ours.ids.tolist()) == (wanted.best, wanted.ids.tolist())
            assert ours.log_sum == pytest.approx(wanted.log_sum, abs=1e-5)
            if fetches:
                np.testing.assert_allclose(ours.row(), wanted.row(), rtol=1e-4, atol=1e-4)
            self.tokens[slot] = ours.best

    def until_ahead(self) -> None:
        for _ in range(2 * steps_ahead._MOST_STEADY):
            self.step()
            if self.is_ahead:
                return
        raise AssertionError("no step was started ahead")


@pytest.mark.parametrize("family", ["llama3", "gemma2", "gemma3"])
def test_greedy_steps_are_started_ahead_and_say_the_same(family: str, make: Make) -> None:
    greedy = Greedy(make(family, kv_pool="static"), 30, 9, 17)
    pool = greedy.both.graphs.store
    took = []
    for _ in range(40):
        greedy.step(fetches=True)
        took.append(greedy.is_ahead)
    # The first is computed without a graph; of the two after it, each could be predicted. But where
    # a session has no block for its next token yet, no step is started ahead.
    ends = [any((at + prompt + 1) % pool.page == 0 for prompt in (30, 9, 17)) for at in range(40)]
    assert took == [at > 2 and not end for at, end in enumerate(ends)]
    assert sum(greedy.both.replays) == 39 + took[-1]
    greedy.both.graphs.cache.check_integrity()


def test_fewer_sessions_take_what_was_started_ahead(make: Make) -> None:
    """In another order, too."""
    greedy = Greedy(make(), 3, 5, 4, 6)
    greedy.until_ahead()
    greedy.step(1, 2, 0, 3, fetches=True)
    greedy.step(2, 1, 0, 3, fetches=True)
    assert greedy.is_ahead and greedy.ahead.taken == 2
    before = sum(greedy.both.replays)
    greedy.step(3, 0, 2, fetches=True)
    assert greedy.is_ahead and sum(greedy.both.replays) == before + 1
    greedy.step(0, fetches=True)
    # There is no graph for one row yet, because none has been seen so far.
    assert not greedy.is_ahead and sum(greedy.both.replays) == before + 1
    greedy.step(0, fetches=True)


def test_a_step_that_was_not_foreseen_is_computed_and_more_are_waited_for(make: Make) -> None:
    both = make()
    greedy = Greedy(both, 3, 5)
    greedy.until_ahead()
    greedy.tokens[1] = 1 + greedy.tokens[1] % 3  # Not the most likely token.
    greedy.step(fetches=True)
    assert not greedy.is_ahead and greedy.ahead._needed == 2 * steps_ahead._LEAST_STEADY
    greedy.until_ahead()
    both.step([1, 1, 0, 0, 0])  # A step that needs all logits,
    assert not greedy.is_ahead
    greedy.step(fetches=True)
    greedy.until_ahead()
    both.step([0, 0, 9, 0, 0])  # and a prompt.
    assert not greedy.is_ahead
    greedy.tokens[2] = 5
    greedy.step(fetches=True)
    greedy.until_ahead()
    assert greedy.ahead._needed == 8 * steps_ahead._LEAST_STEADY
    both.graphs.cache.check_integrity()


def test_what_was_started_ahead_is_forgotten_where_blocks_or_weights_change(make: Make) -> None:
    both = make(context=64)
    greedy = Greedy(both, 3, 5)
    greedy.until_ahead()
    before = sum(both.replays)
    table = both.graphs.cache.handle(0)[0]
    for driven in (both.graphs, both.eager):
        driven.store.move(table, 0, 3, 1)
    greedy.step(fetches=True)
    assert sum(both.replays) == before + 1 and not greedy.is_ahead
    greedy.until_ahead()
    both.graphs.decoder.weights_version += 1
    greedy.step(fetches=True)
    assert not greedy.is_ahead and len(both.graphs.graphs) == 1
    greedy.until_ahead()
    both.graphs.runner.close()
    assert not greedy.is_ahead


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(seed=5)])
@pytest.mark.parametrize("family", ["llama3", "gemma3"])
def test_answers_through_the_engine_are_those_without_graphs(
    family: str, params: SamplingParams, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For sessions that begin and end at different times. The tokens of the draws are guessed."""
    both = make(family, max_sessions=4)
    monkeypatch.setattr(steps_ahead, "has_triton", lambda device_type: True)
    steps_ahead.guesses_on.cache_clear()
    answers = []
    for driven in (both.graphs, both.eager):
        engine_runner = driven.runner
        engine_runner.info = replace(engine_runner.info, has_shortlists=True)  # type: ignore[misc]
        side = EngineSide(loaded_of(driven))
        side.params = params
        prompts = [both.tokens[at : at + 5 + 3 * at] for at in range(3)]
        found = [one.tokens for one in side.answer(prompts, 30)]
        found += [one.tokens for one in side.answer(prompts[:1], 40)]
        side.start(prompts[1:], 100)
        side.decode(9)
        # A session arrives while others decode.
        found += [one.tokens for one in side.answer([both.tokens[50:70]], 12)]
        side._sessions.pop()
        side.decode(9)
        found += side.histories()
        answers.append(found)
    assert answers[0] == answers[1]
    ahead = both.graphs.runner._ahead  # type: ignore[attr-defined]
    # One step was discarded when another session arrived.
    assert ahead.taken > 40 and ahead._needed == 2 * steps_ahead._LEAST_STEADY
    steps_ahead.guesses_on.cache_clear()


@pytest.mark.parametrize("sessions", [1, 3, 8, 64, 65, 256])
def test_every_number_of_sessions_has_a_size_that_wastes_less_than_half(sessions: int) -> None:
    sizes = graph_rows(sessions)
    assert sessions <= sizes[-1] < max(2 * sessions, 2) and sizes[0] == 1
    assert all(one < other <= one + min(one, 32) for one, other in pairwise(sizes))


def small_decode(query: Tensor, keys: Tensor, values: Tensor, seen: Seen, **how: Any) -> Tensor:
    """Allocates the memory that the kernels allocate."""
    tokens, heads, size = query.shape
    partial = query.new_empty((tokens, heads, -(-seen.most // CHUNK), size + 2))
    return query + partial.flatten()[0] * 0


class Measuring:
    """Records nothing: a replay runs the step again."""

    most = 0

    def capture(self, parts: Sequence[Callable[[], None]]) -> Any:
        with Peak() as peak:
            for part in parts:
                part()
        self.most = max(self.most, peak.most)
        return [SimpleNamespace(replay=part) for part in parts]


@pytest.mark.parametrize("family", ["llama3", "gemma2", "gemma3", "phi3", "qwen3"])
def test_prompts_by_graphs_between_which_attention_is_are_those_without(
    family: str, make: Make
) -> None:
    both = make(family)
    both.step([20, 8, 0, 0, 17])
    assert both.replays == []
    parts = len(both.graphs.decoder.layers) + 1
    both.step([30, 1, 9, 0, 5])  # 45 tokens again, of texts that have begun or not.
    assert both.replays == [1] * parts
    both.step([25, 1, 1, 17, 0], outputs=12)
    assert both.replays == [2] * parts
    both.step([1, 5, 1, 1, 0])  # 8 to 16 tokens have another size,
    both.step([1, 1, 1, 1, 9])
    assert both.replays == [2] * parts + [1] * parts
    both.step([5, 0, 0, 0, 0])  # fewer have none.
    assert both.replays == [2] * parts + [1] * parts
    both.graphs.cache.check_integrity()


def test_prompts_are_not_padded_by_much(make: Make) -> None:
    both = make(context=2048, max_batch_tokens=400)
    graphs = both.graphs.decoder.fused
    assert isinstance(graphs, PromptGraphs)
    sizes = {tokens: graphs._size(tokens) for tokens in range(500)}
    assert {sizes[tokens] for tokens in range(8)} == {None} == {sizes[at] for at in range(401, 500)}
    assert [sizes[at] for at in (8, 16, 17, 64, 65, 129, 139, 140, 257, 279, 280, 399, 400)] == [
        *(16, 16, 32, 64, 128, None, None, 160, None, None, 320, 400, 400)
    ]
    for _ in range(2):
        both.step([300, 16, 0, 0, 0])
    assert set(both.replays) == {1}


def test_prompts_by_other_weights_are_recorded_again(make: Make, tmp_path: Path) -> None:
    both = make()
    for _ in range(3):
        both.step([9, 4, 0, 0, 0])
    parts = len(both.graphs.decoder.layers) + 1
    assert both.replays == [2] * parts
    reload_flipped(both, tmp_path / "other")
    both.step([9, 4, 0, 0, 0])
    assert both.replays == [2] * parts + [1] * parts


def test_a_text_between_whose_layers_prompts_are_computed(make: Make) -> None:
    both = make()
    for _ in range(3):
        both.step([20, 20, 0, 0, 0])
    before = sum(both.replays)
    found = []
    for driven in (both.graphs, both.eager):
        text = driven.begin_text(both.tokens[:40], "mean", lambda: None)
        assert text.compute(21) is None and text.computed == 20  # One of two layers.
        found.append(text)
    assert sum(both.replays) == before + 1
    both.step([20, 20, 0, 0, 0])
    assert sum(both.replays) == before + 1
    vectors = [text.compute(20) for text in found]
    np.testing.assert_allclose(vectors[0], vectors[1], rtol=1e-4, atol=1e-6)
    both.step([20, 20, 0, 0, 0])
    assert sum(both.replays) == before + 6


@pytest.mark.parametrize("family", ["llama3", "gemma2"])
def test_a_graph_takes_no_more_than_the_plan_says(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This counts tensors; the memory of the driver is an estimate."""
    monkeypatch.setattr(split_attention, "attend_decode", small_decode)
    tiny_checkpoint(family, tmp_path, max_position_embeddings=8192)
    settings = ModelSettings(kv_type="f32", context=4096, max_sessions=4, max_batch_tokens=32)
    measuring = Measuring()
    both = Both(Recorder(), *[runner_of(tmp_path, settings, triton=True, records=measuring)] * 2)
    decoder = both.graphs.decoder
    config = decoder.config
    logits = 4 * config.vocab_size * 4  # Copied out; allocated before.
    driver = (MOST_GRAPHS + MOST_PROMPT_GRAPHS) * _GRAPH_BYTES + _SPLIT_BYTES
    said = Workspace(config, settings, graphs=True).graph_bytes - driver
    of_prompts = 32 * prompt_token_bytes(config)
    for counts in ([9, 5, 14, 4], [20, 8, 2, 2]):
        both._step(both.graphs, counts, 1)
    assert isinstance(decoder.fused, PromptGraphs) and decoder.fused._buffers is not None
    kept = sum(one.nbytes for one in decoder.fused._buffers.of(32))
    assert 0 < measuring.most + kept <= of_prompts < 4 * (measuring.most + kept)
    measuring.most = 0
    for _ in range(2):
        both._step(both.graphs, [1, 1, 1, 1], 1)
    assert 0 < measuring.most + logits <= said - of_prompts < 20 * measuring.most

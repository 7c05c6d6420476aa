"""Attention over pages is attention over the whole texts, whatever the steps were."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from hearth.backends.native.config import LayerConfig, ModelConfig, Rope
from hearth.backends.native.kv_pool import KvPool
from hearth.backends.native.paged_attention import PagedAttention, PagedRow

HEADS, KV_HEADS, WIDTH, PAGE, WINDOW = 8, 2, 16, 4, 5
LENGTHS = (40, 40, 60)
Step = Sequence[tuple[int, int, int]]
"""Sequence, first position, number of tokens of each row."""
STEPS: Sequence[Step] = (
    [(0, 0, 17), (1, 0, 4)],
    [(1, 4, 5), (2, 0, 30)],
    [(0, 17, 1), (1, 9, 1), (2, 30, 1)],
    [(0, 18, 3), (1, 10, 1), (2, 31, 5)],
    [(2, 36, 1), (0, 21, 1), (1, 11, 4)],
)


class Texts:
    """Random queries, keys and values of some sequences, with blocks in no order."""

    def __init__(self, *, softcap: float = 0.0, sinks: bool = False, deterministic: bool = False):
        generator = torch.Generator().manual_seed(0)
        rope = Rope(1e4, WIDTH)
        layers = (LayerConfig(rope), LayerConfig(rope, WINDOW))
        self.config = ModelConfig(
            "test",
            vocab_size=1,
            width=1,
            heads=HEADS,
            kv_heads=KV_HEADS,
            head_dim=WIDTH,
            feed_forward=1,
            layers=layers,
            context=64,
            norm_eps=1e-5,
            tied=True,
            attention_softcap=softcap,
        )
        self.sinks = torch.randn(HEADS, generator=generator) if sinks else None
        self.deterministic = deterministic
        self.query = [torch.randn(n, HEADS, WIDTH, generator=generator) for n in LENGTHS]
        self.key, self.value = (
            [[torch.randn(n, KV_HEADS, WIDTH, generator=generator) for n in LENGTHS] for _ in "ab"]
            for _ in "kv"
        )
        blocks = list(range(sum(LENGTHS) // PAGE + 3))
        random.Random(1).shuffle(blocks)
        self.tables = [[blocks.pop() for _ in range(n // PAGE)] for n in LENGTHS]
        self.pool = KvPool(
            self.config,
            page=PAGE,
            dtype=torch.float32,
            device=torch.device("cpu"),
            most=(64, 64),
            start=(1, 1),
        )

    def step(self, rows: Step) -> list[Tensor]:
        """What each layer gives for the tokens of a step."""
        tables = self.tables
        attend = PagedAttention(
            self.pool,
            self.config,
            [PagedRow(start, count, (tables[s], tables[s])) for s, start, count in rows],
            compute=torch.float32,
            deterministic=self.deterministic,
        )
        query = torch.cat([self.query[s][at : at + count] for s, at, count in rows])
        found = []
        for layer in range(2):
            key, value = (
                torch.cat([of[layer][s][at : at + count] for s, at, count in rows])
                for of in (self.key, self.value)
            )
            key_value = torch.stack((key, value), dim=1)
            found.append(attend(layer, query, key_value, self.sinks))
        return found

    def expected(self, layer: int, sequence: int, position: int) -> Tensor:
        """By the definition, for one token."""
        window = self.config.layers[layer].window
        first = 0 if window is None else max(position + 1 - window, 0)
        query = self.query[sequence][position].view(KV_HEADS, -1, WIDTH)
        key = self.key[layer][sequence][first : position + 1]
        scores = torch.einsum("kgd,skd->kgs", query, key) * WIDTH**-0.5
        if self.config.attention_softcap:
            cap = self.config.attention_softcap
            scores = torch.tanh(scores / cap) * cap
        if self.sinks is not None:
            scores = torch.cat([scores, self.sinks.view(KV_HEADS, -1, 1)], -1)
        weights = scores.softmax(-1)[..., : len(key)]
        value = self.value[layer][sequence][first : position + 1]
        return torch.einsum("kgs,skd->kgd", weights, value).reshape(HEADS, WIDTH)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_each_token_sees_what_it_should(softcap: float, sinks: bool, deterministic: bool) -> None:
    texts = Texts(softcap=softcap, sinks=sinks, deterministic=deterministic)
    for rows in STEPS:
        found = texts.step(rows)
        places = [(s, at) for s, start, count in rows for at in range(start, start + count)]
        for layer in range(2):
            wanted = torch.stack([texts.expected(layer, s, at) for s, at in places])
            torch.testing.assert_close(found[layer], wanted, atol=1e-5, rtol=1e-5)


def test_deterministic_rows_have_the_same_bits_in_any_step() -> None:
    together, alone = Texts(deterministic=True), Texts(deterministic=True)
    for rows in STEPS:
        found = together.step(rows)
        at = 0
        for sequence, start, count in rows:
            for position in range(start, start + count):
                single = alone.step([(sequence, position, 1)])
                for layer in range(2):
                    assert torch.equal(single[layer][0], found[layer][at])
                at += 1


def test_what_others_left_in_a_page_does_not_reach_who_gets_it_next() -> None:
    texts = Texts()
    for layer in range(2):
        texts.value[layer][0][:] = float("nan")
        texts.key[layer][0][:] = float("inf")
    texts.step([(0, 0, 16)])
    texts.tables[1], texts.tables[0] = texts.tables[0], texts.tables[1]
    texts.step([(1, 0, 5), (2, 0, 9)])
    found = texts.step([(1, 5, 1), (2, 9, 1)])
    for layer in range(2):
        wanted = torch.stack([texts.expected(layer, 1, 5), texts.expected(layer, 2, 9)])
        torch.testing.assert_close(found[layer], wanted, atol=1e-5, rtol=1e-5)


def test_a_pool_grows_to_its_budget_and_keeps_what_it_holds() -> None:
    texts = Texts()
    pool = KvPool(
        texts.config,
        page=PAGE,
        dtype=torch.float32,
        device=torch.device("meta"),
        most=(10, 6),
        start=(2, 2),
    )
    assert (pool.capacity(0), pool.capacity(1)) == (2, 2)
    assert pool.grow(0, 3)
    assert pool.capacity(0) == 4  # doubled
    assert pool.grow(0, 5)
    assert pool.grow(0, 9)
    assert pool.capacity(0) == 10  # its budget
    assert not pool.grow(0, 11)
    assert pool.capacity(1) == 2
    assert pool.layer(0).shape == (2, KV_HEADS, 10, PAGE, WIDTH)


def test_a_block_is_copied_up_to_a_token() -> None:
    texts = Texts()
    texts.step([(0, 0, 16)])
    source, target = texts.tables[0][1], texts.tables[2][0]
    texts.pool.copy(0, source, target, 3)
    kept = texts.pool.layer(0)
    assert torch.equal(kept[:, :, target, :3], kept[:, :, source, :3])
    assert kept[:, :, target, :3].any()
    assert not kept[:, :, target, 3:].any()
    assert not texts.pool.layer(1)[:, :, target].any()  # another group

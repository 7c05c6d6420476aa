"""Attention over pages equals attention over whole texts, for any steps and implementation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hearth.backends.native import paged_attention
from hearth.backends.native.kv_rows import Q8_0
from hearth.backends.native.paged_attention import PagedAttention, PagedRow
from hearth.kernels.cpu.layers import Pages
from paged_texts import HEADS, KV_HEADS, LONG_STEPS, STEPS, WIDTH, Step, Texts

LONG: dict[str, Any] = {"page": 256, "window": 70, "lengths": (310, 320, 810)}


def assert_right(texts: Texts, rows: Step) -> None:
    """Require that a step with `rows` gives the expected result."""
    for layer, found in enumerate(texts.step(rows)):
        wanted = texts.expected(layer, rows)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_each_token_sees_what_it_should(softcap: float, sinks: bool, deterministic: bool) -> None:
    texts = Texts(softcap=softcap, sinks=sinks, deterministic=deterministic)
    for rows in STEPS:
        assert_right(texts, rows)


@pytest.mark.parametrize("takes_runs", [False, True])
def test_kernels_need_no_masks(takes_runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "causal_mask", None)
    monkeypatch.setattr(paged_attention, "additive", None)
    texts = Texts()
    rows = [PagedRow(3, 9, (texts.tables[0],) * 2), PagedRow(9, 1, (texts.tables[1],) * 2)]
    seen: list[Pages] = []

    def kernel(pool: object, pages: Pages, query: torch.Tensor, out: torch.Tensor) -> None:
        seen.append(pages)
        out.copy_(query)

    attend = PagedAttention(
        texts.pool,
        texts.config,
        rows,
        compute=torch.float32,
        kernels=[kernel] * 2,  # type: ignore[list-item]
        kernels_take_runs=takes_runs,
    )
    query, key_value = torch.randn(10, HEADS, WIDTH), torch.randn(10, 2, KV_HEADS, WIDTH)
    for layer in range(2):
        assert torch.equal(attend(layer, query, key_value, None), query)
    assert [len(pages.runs) for pages in seen] == [takes_runs] * 2


def test_long_texts_in_large_pages() -> None:
    texts = Texts(**LONG)
    for rows in LONG_STEPS:
        assert_right(texts, rows)


@pytest.mark.parametrize(
    ("kept", "near"), [(None, 2e-3), ((Q8_0, Q8_0), 2e-2), ((torch.float16, Q8_0), 1e-2)]
)
def test_less_precision_is_close_wherever_it_is_widened(
    kept: tuple[torch.dtype, torch.dtype] | None, near: float
) -> None:
    texts = Texts(dtype=torch.float16, kept=kept, compute=torch.float32, width=32, **LONG)
    for rows in LONG_STEPS:
        for layer, found in enumerate(texts.step(rows)):
            wanted = texts.expected(layer, rows)
            torch.testing.assert_close(found.float(), wanted, atol=near, rtol=near)


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
    assert_right(texts, [(1, 0, 5), (2, 0, 9)])
    assert_right(texts, [(1, 5, 1), (2, 9, 1)])


def test_a_block_is_copied_up_to_a_token() -> None:
    texts = Texts()
    texts.step([(0, 0, 16)])
    source, target = texts.tables[0][1], texts.tables[2][0]
    texts.pool.copy(0, source, target, 3)
    copied = texts.block(0, target)
    assert torch.equal(copied[:, :3], texts.block(0, source)[:, :3])
    assert copied[:, :3].any()
    assert not copied[:, 3:].any()
    assert not texts.block(1, target).any()  # another group

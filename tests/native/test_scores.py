"""Attention with explicit scores gives the result of the definition, in slices too."""

from __future__ import annotations

import pytest
import torch

from hearth.backends.native import scores
from hearth.backends.native.scores import additive, attend_to

HEADS, TEXTS, QUERIES, KEYS, WIDTH = 2, 3, 11, 17, 8


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("most", [1, 500, 1 << 24], ids=["one query", "some", "all"])
@pytest.mark.parametrize("shared", [False, True], ids=["own keys", "shared keys"])
@pytest.mark.parametrize("sinks", ["none", "by head", "by query"])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_slices_are_the_whole(
    most: int, shared: bool, sinks: str, softcap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "_SCORES", most)
    query = drawn(HEADS, TEXTS, QUERIES, WIDTH, seed=0)
    key, value = (drawn(HEADS, 1 if shared else TEXTS, KEYS, WIDTH, seed=n) for n in (1, 2))
    sees = drawn(1, 1, QUERIES, KEYS, seed=3) > -1
    sees[..., 0] = True
    sink = None
    if sinks != "none":
        sink = drawn(HEADS, TEXTS, 1 if sinks == "by head" else QUERIES, 1, seed=4)
    found = attend_to(
        query,
        key,
        value,
        scale=0.3,
        mask=additive(sees, torch.float32),
        softcap=softcap,
        sinks=sink,
        fused=False,
    )
    wanted = torch.einsum("htqd,htkd->htqk", query, key.expand(-1, TEXTS, -1, -1)) * 0.3
    if softcap:
        wanted = torch.tanh(wanted / softcap) * softcap
    wanted = wanted.masked_fill(~sees, -torch.inf)
    if sink is not None:
        wanted = torch.cat((wanted, sink.expand(-1, -1, QUERIES, -1)), dim=-1)
    weights = wanted.softmax(dim=-1)[..., :KEYS]
    wanted = torch.einsum("htqk,htkd->htqd", weights, value.expand(-1, TEXTS, -1, -1))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_large_sinks_take_all_and_nothing_is_lost_to_overflow() -> None:
    query = drawn(1, 1, 2, WIDTH, seed=5) * 100
    key, value = (drawn(1, 1, 4, WIDTH, seed=n) for n in (6, 7))
    sinks = torch.full((1, 1, 1, 1), 1e4)
    assert not attend_to(query, key, value, scale=1.0, sinks=sinks).any()
    found = attend_to(query, key, value, scale=1.0, sinks=-sinks)
    wanted = attend_to(query, key, value, scale=1.0)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_a_fused_kernel_and_written_scores_agree_on_causal_text() -> None:
    query = drawn(HEADS, TEXTS, QUERIES, WIDTH, seed=8)
    key, value = (drawn(HEADS, 1, QUERIES, WIDTH, seed=n) for n in (9, 10))
    fused, written = (
        attend_to(query, key, value, scale=0.4, causal=True, fused=fused) for fused in (True, False)
    )
    torch.testing.assert_close(fused, written, atol=1e-5, rtol=1e-5)

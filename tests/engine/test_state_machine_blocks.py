"""Arbitrary events of an engine over paged memory, in any order (`engine_machine`): all accounts
agree, and at the end every block is free.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import invariant, precondition, rule

from drafting import drafting_engine
from engine_machine import CONTEXT, QUIET, VOCAB, EngineMachine, loaded, run_many
from fake_pages import FakePagedRunner
from hearth.backends.engine.kv.group import most_blocks
from hearth.backends.native.kv_sizes import KvSizes

WINDOWS = [(None,), (None,), (None, 3), (None, 5, 9), (6,), (3, 8)]


class PagedEngineMachine(EngineMachine):
    """Events over `FakePages`."""

    @precondition(lambda self: self.engine is None)
    @rule(
        page=st.integers(1, 16),
        windows=st.sampled_from(WINDOWS),
        window_blocks=st.sampled_from(["all", "planned", "of one"]),
        pool=st.integers(CONTEXT, 3 * CONTEXT),
        slots=st.integers(1, 4),
        chunk=st.sampled_from([1, 3, 8, 64]),
        kept_tokens=st.sampled_from([None, 0, 16]),
        start=st.sampled_from([None, 1]),
        drafts=st.sampled_from([0, 2, 5]),
        kept_while_running=st.sampled_from([None, 0, 16]),
        part_tokens=st.sampled_from([3, 8]),
        most_offloaded=st.sampled_from([0, CONTEXT, 4 * CONTEXT]),
    )
    def load(self, page, windows, window_blocks, chunk, drafts, **sizes):
        self.drafts = drafts
        self.made = {"page": page, "windows": windows, "chunk": chunk, **sizes}
        self.made["worth_moving"] = 2
        if window_blocks == "planned":
            token_bytes = (1,) * len(windows)
            planned = KvSizes(windows, token_bytes, page, sizes["slots"], chunk)
            self.made["window_blocks"] = planned.blocks(sizes["pool"])
        elif window_blocks == "of one":
            alone = most_blocks(max(window or 0 for window in windows), chunk, page)
            self.made["window_blocks"] = (alone,) * len(windows)
        self.start()

    def start(self):
        self.runner = FakePagedRunner(vocab=VOCAB, context=CONTEXT, **self.made)
        self.engine = drafting_engine(self.runner, lambda: self.now)

    @loaded
    @rule(blocks=st.integers(0, 6))
    def no_more_memory(self, blocks):
        """Pages can grow only by a few more blocks."""
        pages = self.runner.pages
        most = [pages.capacity(group) + blocks for group in range(len(pages.groups))]
        pages.most = [min(pair) for pair in zip(most, pages.most, strict=True)]
        self.anybody_may_end_early()

    @property
    def is_short(self):
        """Whether there is less memory than was planned."""
        pages = self.runner.pages
        planned = -(-self.made["pool"] // self.made["page"])
        return any(most < planned for most in pages.most)

    @invariant()
    def everything_agrees(self):
        if self.engine is not None:
            if self.is_short:
                self.anybody_may_end_early()
            else:
                assert self.engine.kv.refused == 0, "what was reserved is there"
        super().everything_agrees()

    def teardown(self):
        super().teardown()
        if self.engine is None:
            return
        assert all(group.used == 0 for group in self.engine.kv._leaves.groups)
        if self.made["start"] is not None:
            allocated = self.engine.stats().allocated_tokens
            assert allocated <= self.made["start"] * self.made["page"], "given back"


class TestSome(PagedEngineMachine.TestCase):
    """A few rules, in every run."""

    settings = settings(
        max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=QUIET
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_thousand_rules():
    run_many(PagedEngineMachine)

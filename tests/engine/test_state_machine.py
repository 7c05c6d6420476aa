"""Arbitrary events of an engine over whole sequences, with offload tiers and background prefill, in
any order (`engine_machine`): at the end nothing is held.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import precondition, rule

from drafting import drafting_engine
from engine_machine import CONTEXT, QUIET, VOCAB, EngineMachine, loaded, run_many
from fake_runner import FakeRunner
from hearth.backends.engine import background, scheduler
from hearth.backends.engine.kv.disk_files import KvFolder
from inline_disk import InlineDisk


class SequencesMachine(EngineMachine):
    """Events over a `FakeStore` and a disk."""

    def __init__(self):
        super().__init__()
        self.free_bytes = 10_000
        self.folder = TemporaryDirectory()

    @rule(
        kind=st.sampled_from(["full", "recurrent", "sliding"]),
        pool=st.integers(CONTEXT, 3 * CONTEXT),
        slots=st.integers(1, 4),
        chunk=st.sampled_from([1, 3, 8, 64]),
        can_save=st.booleans(),
        kept=st.integers(0, 4),
        beside=st.sampled_from([None, 0, 1, 3]),
        beside_fails=st.booleans(),
        tile=st.sampled_from([1, 4]),
        mixed_tokens=st.sampled_from([None, 3, 8]),
        kept_while_running=st.sampled_from([None, 0, 4]),
        allocated=st.sampled_from([None, CONTEXT // 2]),
        most_offloaded=st.sampled_from([None, 0, CONTEXT, 4 * CONTEXT]),
        budget=st.sampled_from([None, None, 2 * CONTEXT]),
        part_tokens=st.sampled_from([3, 8]),
        part_s=st.sampled_from([0.0, 0.015]),
        state_bytes=st.sampled_from([0, 50]),
        drafts=st.sampled_from([0, 2, 5]),
        grows_after=st.sampled_from([None, 0, 2]),
        disk_bytes=st.sampled_from([None, 2_000, 100_000]),
    )
    @precondition(lambda self: self.engine is None)
    def load(
        self,
        kind,
        pool,
        slots,
        chunk,
        can_save,
        kept,
        beside,
        beside_fails,
        part_s,
        drafts,
        **hints,
    ):
        self.disk_bytes = hints.pop("disk_bytes")
        self.made = {"kind": kind, "pool": pool, "slots": slots, "chunk": chunk}
        self.drafts = drafts
        if kind != "recurrent":
            self.made["state_bytes"] = 0
        self.part_s = part_s
        self.made |= {"can_save": can_save, "kept_sequences": kept}
        self.made |= {"beside": beside, "beside_fails": beside_fails, "worth_moving": 2, **hints}
        self.start()

    def start(self):
        self.runner = FakeRunner(
            vocab=VOCAB,
            context=CONTEXT,
            on_copy=self.copied,
            available_bytes=lambda: self.free_bytes,
            **self.made,
        )
        disk = None
        if self.disk_bytes is not None:
            # The files of the previous process are there.
            folder = KvFolder(Path(self.folder.name) / "kv", self.disk_bytes)
            key = repr(self.made["kind"]).encode()
            disk = InlineDisk(folder, key, "fake", self.disk_bytes, lambda: self.now)
        self.engine = drafting_engine(self.runner, lambda: self.now, disk=disk)

    def copied(self, tokens):
        self.now += self.part_s

    @loaded
    @rule(free_bytes=st.sampled_from([0, 100, 10_000]))
    def other_programs_take_memory(self, free_bytes):
        self.free_bytes = free_bytes
        self.now += 1

    @loaded
    @rule(pick=st.integers(0, 1000), at=st.integers(0, 300))
    def damage(self, pick, at):
        """A byte on the disk flips."""
        files = sorted(Path(self.folder.name).glob("kv/*/*/*.kv"))
        if files:
            file = files[pick % len(files)]
            data = bytearray(file.read_bytes())
            data[at % len(data)] ^= 4
            file.write_bytes(data)

    def teardown(self):
        self.folder.cleanup()
        super().teardown()
        assert self.engine is None or self.runner.store.cells == 0


@pytest.fixture(autouse=True)
def short_prompts_go_beside(monkeypatch):
    monkeypatch.setattr(background, "WORTH_TOKENS", 6)
    monkeypatch.setattr(background, "WORTH_STEPS", 0)
    monkeypatch.setattr(scheduler, "WORTH_SAVING", 4)


class TestSome(SequencesMachine.TestCase):
    """A few rules, in every run."""

    settings = settings(
        max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=QUIET
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_thousand_rules():
    run_many(SequencesMachine)

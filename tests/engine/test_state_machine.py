"""Anything that can happen to an engine, in any order: nobody says a wrong word, every stream ends
once, the accounts agree after every event, and at the end nothing is held.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from drafting import assert_namespaces_share_nothing, assert_only_verified, drafting_engine
from fake_runner import FakeRunner
from hearth.backends.contract.events import ChoiceFinished, Failed, Finished, Scores, Started, Token
from hearth.backends.engine import background, scheduler
from hearth.backends.engine.choices import ChoiceGroup
from hearth.backends.engine.drafts import Speculating
from hearth.backends.engine.kv.disk_files import KvFolder
from hearth.backends.engine.runner import RunnerLost
from hearth.backends.engine.scoring import Scoring
from inline_disk import InlineDisk
from speakers import Listener, drain, generation

VOCAB = 31
CONTEXT = 48
PREFIXES = [[(seed * k + seed) % VOCAB for k in range(20)] for seed in (3, 5)]

pins = st.tuples(st.integers(1, 20), st.sampled_from([5.0, 30.0]))
"""(tokens, seconds)."""

MOST_RULES = 200_000
counted = {"rules": 0}


class Asked:
    """One request, and what must come of it."""

    def __init__(self, runner, prompt, tokens, count):
        self.prompt, self.tokens, self.count = prompt, tokens, count
        self.expected = runner.greedy(prompt, tokens)
        self.heard = Listener()
        self.cancelled = False

    def said(self, index):
        return [
            i
            for event in self.heard.events
            if isinstance(event, Token) and event.index == index
            for i in event.ids
        ]

    def check(self):
        ends = [e for e in self.heard.events if isinstance(e, (Finished, Failed))]
        assert len(ends) <= 1
        assert not ends or ends[0] is self.heard.last
        assert len([e for e in self.heard.events if isinstance(e, Started)]) <= 1
        for index in range(self.count):
            said = self.said(index)
            assert said == self.expected[: len(said)], "a wrong word"
        if ends and isinstance(ends[0], Finished) and not self.cancelled:
            assert all(self.said(index) == self.expected for index in range(self.count))
            wanted = self.count if self.count > 1 else 0
            assert sum(isinstance(e, ChoiceFinished) for e in self.heard.events) == wanted

    @property
    def over(self):
        return self.heard.over


class Scored:
    """A request for scores."""

    def __init__(self):
        self.heard = Listener()
        self.cancelled = False

    def check(self):
        assert len(self.heard.events) <= 1

    @property
    def over(self):
        return bool(self.heard.events)


class EngineMachine(RuleBasedStateMachine):
    """An engine, its runner, and everything that was ever asked of them."""

    def __init__(self):
        super().__init__()
        self.idents = 0
        self.asked = {}
        self.answered = []
        self.engine = None
        self.now = 0.0
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
    def load(self, kind, pool, slots, chunk, can_save, kept, beside, beside_fails, part_s, **hints):
        self.disk_bytes = hints.pop("disk_bytes")
        self.made = {"kind": kind, "pool": pool, "slots": slots, "chunk": chunk}
        self.drafts = hints.pop("drafts")
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
            # What the process before has written is there.
            folder = KvFolder(Path(self.folder.name) / "kv", self.disk_bytes)
            key = repr(self.made["kind"]).encode()
            disk = InlineDisk(folder, key, "fake", self.disk_bytes, lambda: self.now)
        self.engine = drafting_engine(self.runner, lambda: self.now, disk=disk)

    def copied(self, tokens):
        self.now += self.part_s

    loaded = precondition(lambda self: self.engine is not None)

    def ask(
        self, prompt, tokens, count, priority, session, pins=(), reuse_prefix=True, namespace=b""
    ):
        self.idents += 1
        pins = [(min(at, len(prompt)), seconds) for at, seconds in pins]
        tokens = min(tokens, CONTEXT - len(prompt))
        asked = self.asked[self.idents] = Asked(self.runner, prompt, tokens, count)
        group = ChoiceGroup(asked.heard, count)
        work = [
            generation(
                self.idents,
                prompt,
                self.runner,
                tokens=tokens,
                emit=group.emitter(index) if count > 1 else asked.heard,
                index=index,
                priority=priority,
                session=session,
                pins=pins,
                reuse_prefix=reuse_prefix,
                speculating=Speculating("draft", self.drafts) if self.drafts else None,
            )[0]
            for index in range(count)
        ]
        for sequence in work:
            sequence.namespace = namespace
        self.engine.submit(*work)

    @loaded
    @rule(
        prefix=st.sampled_from([[], *PREFIXES]),
        cut=st.integers(0, 20),
        rest=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
        tokens=st.integers(1, 14),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        session=st.sampled_from(["a", "b", ""]),
        pins=st.lists(pins, max_size=3),
        reuse_prefix=st.sampled_from([True, True, False]),
        namespace=st.sampled_from([b"", b"", b"adapter"]),
    )
    def add(self, prefix, cut, rest, tokens, **how):
        self.ask([*prefix[:cut], *rest], tokens, 1, **how)

    @loaded
    @rule(free_bytes=st.sampled_from([0, 100, 10_000]))
    def other_programs_take_memory(self, free_bytes):
        self.free_bytes = free_bytes
        self.now += 1

    @loaded
    @rule(seconds=st.integers(1, 20))
    def wait(self, seconds):
        self.now += seconds

    @loaded
    @rule(
        rest=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
        count=st.integers(2, 4),
        tokens=st.integers(1, 10),
        pins=st.lists(pins, max_size=1),
        reuse_prefix=st.booleans(),
    )
    def fork(self, rest, count, tokens, pins, reuse_prefix):
        self.ask(rest, tokens, count, 0, "", pins, reuse_prefix)

    @loaded
    @rule(pick=st.integers(0, 1000), question=st.lists(st.integers(0, VOCAB - 1), max_size=6))
    @precondition(lambda self: self.answered)
    def hit_a_prefix(self, pick, question):
        """Go on with something that was answered before, or ask it again."""
        before = self.answered[pick % len(self.answered)]
        prompt = [*before.prompt, *before.said(0), *question] if question else before.prompt
        if len(prompt) < CONTEXT:
            self.ask(prompt, 6, 1, 0, "")

    @loaded
    @rule(tokens=st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=30))
    def score(self, tokens):
        self.idents += 1
        scored = self.asked[self.idents] = Scored()
        self.engine.submit(Scoring(self.idents, tokens, scored.heard))

    @loaded
    @rule(count=st.integers(1, 12))
    def step(self, count):
        for _ in range(count):
            self.engine.turn()

    @loaded
    @rule(pick=st.integers(0, 1000))
    @precondition(lambda self: self.asked)
    def cancel(self, pick):
        ident = sorted(self.asked)[pick % len(self.asked)]
        self.asked[ident].cancelled = True
        self.engine.cancel(ident)

    @loaded
    @rule()
    def preempt(self):
        self.engine.turn()
        self.engine._scheduler.make_way()

    @loaded
    @rule(also_disk=st.booleans())
    def evict(self, also_disk):
        if also_disk:
            self.engine.clear_cache(lambda stats: None)
        else:
            self.engine.kv.clear()
        self.engine.turn()

    @loaded
    @rule()
    def finish(self):
        """Let somebody come to his end."""
        before = sum(asked.over for asked in self.asked.values())
        for _ in range(200):
            if sum(asked.over for asked in self.asked.values()) > before:
                return
            if not self.engine.turn():
                return

    @loaded
    @rule(when=st.sampled_from(["fail", "busy"]))
    def trouble(self, when):
        """The next step fails, or finds no memory."""
        setattr(self.runner, f"{when}_at", len(self.runner.tape) + 1)
        for asked in self.asked.values():
            asked.cancelled = True  # A lone sequence may end as failed.
        self.engine.turn()
        setattr(self.runner, f"{when}_at", None)

    @loaded
    @rule()
    def die(self):
        """The worker dies; the host ends the streams, and another begins with nothing."""
        self.runner.lose_at = len(self.runner.tape) + 1
        try:
            drain(self.engine)
        except RunnerLost:
            self.forget()
            self.start()
        else:
            self.runner.lose_at = None

    def forget(self):
        for asked in self.asked.values():
            asked.check()
        self.asked.clear()
        self.answered.clear()

    @invariant()
    def everything_agrees(self):
        counted["rules"] += 1
        if self.engine is None:
            return
        self.engine.kv.check_integrity()
        assert_namespaces_share_nothing(self.engine.kv)
        assert_only_verified(self.engine)
        for ident, asked in list(self.asked.items()):
            asked.check()
            if asked.over:
                del self.asked[ident]
                if isinstance(asked, Asked) and not asked.cancelled:
                    self.answered = [*self.answered[-5:], asked]

    @loaded
    @rule(pick=st.integers(0, 1000), at=st.integers(0, 300))
    def damage(self, pick, at):
        """A byte of what is on disk flips."""
        files = sorted(Path(self.folder.name).glob("kv/*/*/*.kv"))
        if files:
            file = files[pick % len(files)]
            data = bytearray(file.read_bytes())
            data[at % len(data)] ^= 4
            file.write_bytes(data)

    def teardown(self):
        self.folder.cleanup()
        if self.engine is None:
            return
        drain(self.engine)
        for asked in self.asked.values():
            asked.check()
            assert asked.over, "nobody is left waiting"
            last = asked.heard.last
            assert asked.cancelled or isinstance(last, (Finished, Scores))
        assert self.engine.stats().running == self.engine.stats().waiting == 0
        self.engine.clear_cache(lambda stats: None)
        self.engine.turn()
        stats = self.engine.stats()
        assert (stats.live_tokens, stats.kept_tokens, stats.kept_prefixes) == (0, 0, 0)
        assert stats.offloaded_bytes == stats.beside_bytes == 0
        self.engine.kv.check_integrity()
        assert_namespaces_share_nothing(self.engine.kv)
        assert self.runner.store.cells == 0


@pytest.fixture(autouse=True)
def short_prompts_go_beside(monkeypatch):
    monkeypatch.setattr(background, "WORTH_TOKENS", 6)
    monkeypatch.setattr(background, "WORTH_STEPS", 0)
    monkeypatch.setattr(scheduler, "WORTH_SAVING", 4)


QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


class TestSome(EngineMachine.TestCase):
    """A few, in every run."""

    settings = settings(
        max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=QUIET
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_thousand_rules():
    """As many as it takes, in machines of different lengths."""

    class Many(EngineMachine.TestCase):
        settings = settings(
            max_examples=500, stateful_step_count=120, deadline=None, suppress_health_check=QUIET
        )

    counted["rules"] = 0
    rounds = 0
    while counted["rules"] < MOST_RULES:
        Many("runTest").runTest()
        rounds += 1
    print(f"{counted['rules']:,} rules in {rounds} rounds")

"""A state machine of arbitrary engine events in any order. It checks that no text is wrong, that
every stream ends exactly once, and that the accounts agree after every event. Tests add a runner
and its events.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from drafting import (
    assert_namespaces_share_nothing,
    assert_only_verified,
    assert_texts_are_shared,
)
from hearth.backends.contract.events import ChoiceFinished, Failed, Finished, Scores, Started, Token
from hearth.backends.engine.choices import ChoiceGroup
from hearth.backends.engine.drafts import Speculating
from hearth.backends.engine.runner import RunnerLost
from hearth.backends.engine.scoring import Scoring
from speakers import Listener, drain, generation

VOCAB = 31
CONTEXT = 48
PREFIXES = [[(seed * k + seed) % VOCAB for k in range(20)] for seed in (3, 5)]
MOST_RULES = 200_000
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

pins = st.tuples(st.integers(1, 20), st.sampled_from([5.0, 30.0]))
"""(tokens, seconds)."""
counted = {"rules": 0}
loaded = precondition(lambda self: self.engine is not None)


class Asked:
    """One request for text, and its expected result."""

    def __init__(self, runner, prompt, tokens, count):
        self.prompt, self.count = prompt, count
        self.expected = runner.greedy(prompt, tokens)
        self.heard = Listener()
        self.may_end_early = False

    def said(self, index):
        return [
            token
            for event in self.heard.events
            if isinstance(event, Token) and event.index == index
            for token in event.ids
        ]

    def check(self):
        ends = [event for event in self.heard.events if isinstance(event, (Finished, Failed))]
        assert len(ends) <= 1 and (not ends or ends[0] is self.heard.last)
        assert sum(isinstance(event, Started) for event in self.heard.events) <= 1
        for index in range(self.count):
            said = self.said(index)
            assert said == self.expected[: len(said)], "a wrong word"
        if ends and not self.may_end_early:
            assert isinstance(ends[0], Finished), ends[0]
            assert all(self.said(index) == self.expected for index in range(self.count))
            wanted = self.count if self.count > 1 else 0
            assert sum(isinstance(e, ChoiceFinished) for e in self.heard.events) == wanted

    @property
    def over(self):
        return self.heard.over


class Scored:
    """One request for scores."""

    def __init__(self):
        self.heard = Listener()
        self.may_end_early = False

    def check(self):
        assert len(self.heard.events) <= 1
        if self.over and not self.may_end_early:
            assert isinstance(self.heard.last, Scores)

    @property
    def over(self):
        return bool(self.heard.events)


class EngineMachine(RuleBasedStateMachine):
    """An engine, its runner, and every request so far. A rule of the subclass sets `drafts` and
    calls `start`, which makes `runner` and `engine`.
    """

    def __init__(self):
        super().__init__()
        self.idents = 0
        self.asked = {}
        self.answered = []
        self.shared = []
        """All tokens of each request that others may draft from."""
        self.engine = None
        self.now = 0.0
        self.drafts = 0

    def start(self):
        raise NotImplementedError

    def ask(
        self,
        prompt,
        tokens,
        count=1,
        priority=0,
        session="",
        pins=(),
        reuse_prefix=True,
        namespace=b"",
    ):
        self.idents += 1
        pins = [(min(at, len(prompt)), seconds) for at, seconds in pins]
        tokens = min(tokens, CONTEXT - len(prompt))
        asked = self.asked[self.idents] = Asked(self.runner, prompt, tokens, count)
        if reuse_prefix:
            self.shared.append([*prompt, *asked.expected])
        mode = "ngram" if self.idents % 2 else "draft"
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
                speculating=Speculating(mode, self.drafts, shares=reuse_prefix)
                if self.drafts
                else None,
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
        self.ask([*prefix[:cut], *rest], tokens, **how)

    @loaded
    @rule(
        rest=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
        count=st.integers(2, 4),
        tokens=st.integers(1, 10),
        pins=st.lists(pins, max_size=1),
        reuse_prefix=st.booleans(),
    )
    def fork(self, rest, count, tokens, pins, reuse_prefix):
        self.ask(rest, tokens, count, pins=pins, reuse_prefix=reuse_prefix)

    @loaded
    @rule(pick=st.integers(0, 1000), question=st.lists(st.integers(0, VOCAB - 1), max_size=6))
    @precondition(lambda self: self.answered)
    def hit_a_prefix(self, pick, question):
        """Continue a text that was answered before, ask it again, or branch off."""
        before = self.answered[pick % len(self.answered)]
        said = before.said(0)
        prompt = [*before.prompt, *said[: pick % (len(said) + 1)], *question]
        if len(prompt) < CONTEXT:
            self.ask(prompt, 6)

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
            self.engine.run_once()
            self.engine.kv.check_integrity()

    @loaded
    @rule(seconds=st.integers(1, 20))
    def wait(self, seconds):
        self.now += seconds

    @loaded
    @rule(pick=st.integers(0, 1000))
    @precondition(lambda self: self.asked)
    def cancel(self, pick):
        ident = sorted(self.asked)[pick % len(self.asked)]
        self.asked[ident].may_end_early = True
        self.engine.cancel(ident)

    @loaded
    @rule()
    def preempt(self):
        self.engine.run_once()
        self.engine._scheduler.make_way()

    @loaded
    @rule(also_disk=st.booleans())
    def evict(self, also_disk):
        if also_disk:
            self.engine.clear_cache(lambda stats: None)
        else:
            self.engine.kv.clear()
        self.engine.run_once()

    @loaded
    @rule()
    def finish(self):
        """Run until one request ends."""
        before = sum(asked.over for asked in self.asked.values())
        for _ in range(200):
            if sum(asked.over for asked in self.asked.values()) > before:
                return
            if not self.engine.run_once():
                return

    @loaded
    @rule(when=st.sampled_from(["fail", "busy"]))
    def trouble(self, when):
        """The next step fails, or finds no memory."""
        setattr(self.runner, f"{when}_at", len(self.runner.tape) + 1)
        self.anybody_may_end_early()
        self.engine.run_once()
        setattr(self.runner, f"{when}_at", None)

    def anybody_may_end_early(self):
        """A sequence that runs alone may fail."""
        for asked in self.asked.values():
            asked.may_end_early = True

    @loaded
    @rule()
    def die(self):
        """The worker dies; the host ends the streams, and another worker begins with an empty
        cache.
        """
        self.runner.lose_at = len(self.runner.tape) + 1
        try:
            drain(self.engine)
        except RunnerLost:
            for asked in self.asked.values():
                asked.check()
            self.asked.clear()
            self.answered.clear()
            self.start()
        else:
            self.runner.lose_at = None

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
                if isinstance(asked, Asked) and isinstance(asked.heard.last, Finished):
                    self.answered = [*self.answered[-5:], asked]

    def teardown(self):
        if self.engine is None:
            return
        drain(self.engine)
        self.everything_agrees()
        assert not self.asked, "a sequence is left waiting"
        assert self.engine.stats().running == self.engine.stats().waiting == 0
        assert_texts_are_shared(self.engine, self.shared)
        self.engine.clear_cache(lambda stats: None)
        self.engine.run_once()
        stats = self.engine.stats()
        assert (stats.live_tokens, stats.kept_tokens, stats.kept_prefixes) == (0, 0, 0)
        assert stats.pinned_tokens == stats.offloaded_bytes == stats.beside_bytes == 0
        self.everything_agrees()


def run_many(machine: type[EngineMachine]) -> None:
    """Run at least `MOST_RULES` rules, in machines of different lengths."""

    class Many(machine.TestCase):
        settings = settings(
            max_examples=500, stateful_step_count=120, deadline=None, suppress_health_check=QUIET
        )

    counted["rules"] = 0
    rounds = 0
    while counted["rules"] < MOST_RULES:
        Many("runTest").runTest()
        rounds += 1
    print(f"{counted['rules']:,} rules in {rounds} rounds")

"""Answers that follow a grammar: the distribution they are drawn from, and how they end."""

import json

import numpy as np
import pytest

from byte_tokenizer import ByteTokenizer
from fake_runner import FakeRunner
from hearth.backends.contract.events import Failed
from hearth.backends.contract.requests import Constraint
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine import grammar_library
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.generation import Generation, Limits
from hearth.backends.engine.sampler import Sampler
from hearth.backends.errors import InvalidParameter
from hearth.backends.text.output.rules import content_rule
from speakers import Listener, at_rest, drain

TOKENIZER = ByteTokenizer()
END = min(TOKENIZER.end_ids)
DRAWS = 3000
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
CHI_SQUARE_AT_ONE_IN_A_THOUSAND = {1: 10.8, 2: 13.8, 3: 16.3}
LOGITS = np.random.default_rng(5).normal(0, 1, 8).astype(np.float32)


class Allowed:
    """A `Matcher` with a fixed set of allowed tokens."""

    def __init__(self, *tokens, vocab=8):
        self.mask = np.zeros(vocab, dtype=bool)
        self.mask[list(tokens)] = True
        self.masks = 0

    def allows(self, token):
        return bool(self.mask[token])

    def allowed(self):
        self.masks += 1
        return self.mask

    def accept(self, token):
        assert self.allows(token)

    complete = False


def assert_follows(counts, law):
    law = np.asarray(law, dtype=np.float64) / np.sum(law)
    assert counts[law == 0].sum() == 0
    expected = counts.sum() * law[law > 0]
    chi_square = ((counts[law > 0] - expected) ** 2 / expected).sum()
    assert chi_square < CHI_SQUARE_AT_ONE_IN_A_THOUSAND[(law > 0).sum() - 1]


def frequencies(matcher, **changes):
    sampler = Sampler(SamplingParams(seed=2024, **{**OFF, **changes}))
    drawn = [sampler.draw(LOGITS, at, matcher=matcher).id for at in range(DRAWS)]
    return np.bincount(drawn, minlength=LOGITS.size)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("tokens", [(0, 3, 6), (1, 2, 5, 7)])
def test_without_truncation_the_law_is_that_of_masked_logits(temperature, tokens):
    law = np.exp(LOGITS / np.float64(temperature))
    law[[token for token in range(8) if token not in tokens]] = 0
    assert_follows(frequencies(Allowed(*tokens), temperature=temperature), law)


def test_the_second_number_does_not_depend_on_the_first():
    best, second = np.argsort(LOGITS)[::-1][:2]
    sampler = Sampler(SamplingParams(seed=7, **OFF))
    refused = Allowed(*(token for token in range(8) if token != best))
    again = [
        sampler.draw(LOGITS, at, matcher=refused).id
        for at in range(DRAWS)
        if sampler.draw(LOGITS, at).id == best
    ]
    law = np.exp(LOGITS.astype(np.float64))
    law[best] = 0
    share = np.mean(np.array(again) == second)
    assert abs(share - law[second] / law.sum()) < 4 * np.sqrt(0.25 / len(again))


def test_with_truncation_what_the_model_would_draw_keeps_its_probability():
    """p(t) + (1 - A) r(t): top-k of all tokens first, then of those that the grammar allows."""
    order = np.argsort(LOGITS)[::-1]
    tokens = [order[0], order[2], order[3], order[5]]
    p, r = np.zeros(8), np.zeros(8)
    p[order[:3]] = np.exp(LOGITS[order[:3]])
    r[tokens[:3]] = np.exp(LOGITS[tokens[:3]])
    p, r = p / p.sum(), r / r.sum()
    allowed = np.isin(np.arange(8), tokens)
    law = np.where(allowed, p, 0) + p[~allowed].sum() * r
    assert_follows(frequencies(Allowed(*tokens), temperature=1.0, top_k=3), law)


def test_what_the_grammar_allows_is_drawn_as_without_it():
    plain = Sampler(SamplingParams(seed=3))
    free = Allowed(*range(8))
    assert [plain.draw(LOGITS, at) for at in range(50)] == [
        plain.draw(LOGITS, at, matcher=free) for at in range(50)
    ]
    assert free.masks == 0


def test_greedy_takes_the_best_that_is_allowed():
    sampler = Sampler(SamplingParams(temperature=0.0))
    order = np.argsort(LOGITS)
    assert sampler.draw(LOGITS, 0, matcher=Allowed(*order[:4])).id == order[3]
    assert sampler.draw(LOGITS, 0, matcher=Allowed(*order[6:])).id == order[7]


def test_truncation_acts_on_what_is_allowed():
    worst = np.argsort(LOGITS)[:3]
    counts = frequencies(Allowed(*worst), top_k=2, top_p=0.99)
    assert counts[worst[0]] == 0 and (counts[worst[1:]] > 0).all() and counts.sum() == DRAWS


@pytest.mark.parametrize("step", [{"typical_p": 0.5}, {"xtc_probability": 1.0}, {"min_p": 0.5}])
def test_other_steps_find_a_token_among_few(step):
    assert frequencies(Allowed(int(LOGITS.argmin())), **step).argmax() == LOGITS.argmin()


def test_log_probabilities_stay_those_of_the_model():
    worst = int(LOGITS.argmin())
    sampler = Sampler(SamplingParams(temperature=0.0, logprobs=2))
    drawn = sampler.draw(LOGITS, 0, matcher=Allowed(worst))
    total = np.log(np.exp(LOGITS.astype(np.float64)).sum())
    assert drawn.id == worst and drawn.logprob == pytest.approx(LOGITS[worst] - total)
    assert drawn.top[0][0] == LOGITS.argmax()


def test_a_bias_that_bans_all_that_is_allowed_is_named():
    sampler = Sampler(SamplingParams(logit_bias={2: -100.0, 3: -100.0}, seed=1))
    with pytest.raises(InvalidParameter, match="the grammar allows") as caught:
        sampler.draw(LOGITS, 0, matcher=Allowed(2, 3), banned={7})
    assert caught.value.param == "logit_bias"


def test_a_banned_end_is_drawn_where_nothing_else_may_follow():
    sampler = Sampler(SamplingParams(seed=1))
    assert sampler.draw(LOGITS, 0, matcher=Allowed(5, 6), banned={5, 6, 7}).id == 5
    assert sampler.draw(LOGITS, 0, matcher=Allowed(2, 6), banned={5, 6, 7}).id == 2


def answers(grammars, *constraints, tokens=120, params=None, min_tokens=0, ignore_eos=False):
    """The output of a model with random text under each constraint: a listener for each."""
    ends = TOKENIZER.end_ids
    runner = FakeRunner(vocab=TOKENIZER.vocab_size, end_ids=ends, pool=4096, context=1024)
    engine = Engine(runner)
    heard = []
    for number, constraint in enumerate(constraints):
        matcher = grammars.matcher(f"start: {content_rule(constraint, 'it')}", "it")
        heard.append(Listener())
        made = Generation(
            number,
            [number],
            Sampler(params or SamplingParams(seed=number, **OFF)),
            Limits(tokens, min_tokens, ignore_eos, ends),
            (),
            TOKENIZER.piece,
            heard[-1],
            matcher=matcher,
        )
        engine.submit(made)
    drain(engine)
    assert at_rest(engine, runner)
    return heard


def pattern(text):
    return Constraint("regex", text)


SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["hello", "true"]},
        "many": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 3},
        "flag": {"type": ["boolean", "null"]},
    },
    "required": ["kind", "many", "flag"],
    "additionalProperties": False,
}


def test_whatever_stops_follows_the_schema(grammars):
    heard = answers(grammars, *[Constraint("json_schema", json.dumps(SCHEMA))] * 40)
    finished = [json.loads(one.text) for one in heard if one.last.reason == "stop"]
    assert len(finished) >= 20
    for value in finished:
        assert list(value) == ["kind", "many", "flag"] and value["kind"] in ("hello", "true")
        assert len(value["many"]) <= 3 and all(one >= 0 for one in value["many"])
        assert value["flag"] in (True, False, None)


def test_what_is_cut_says_so_and_is_the_beginning_of_a_good_text(grammars):
    (heard,) = answers(grammars, pattern("[ab]{50}"), tokens=10)
    assert heard.last.reason == "length" and set(heard.text) <= {"a", "b"}
    assert heard.last.usage.completion_tokens == len(heard.ids) == 10


def test_an_answer_ends_with_its_grammar_without_an_end_token(grammars):
    for heard in answers(grammars, *[Constraint("choice", '["hello", "12"]')] * 8):
        assert heard.text in ("hello", "12") and heard.last.reason == "stop"
        assert not TOKENIZER.end_ids & set(heard.ids)


@pytest.mark.parametrize("how", [{"ignore_eos": True}, {"min_tokens": 100}])
@pytest.mark.parametrize(("source", "text"), [("hello", "hello"), ("a(bc)?", "abc"), ("()", "")])
def test_where_only_the_end_can_follow_the_answer_ends(grammars, how, source, text):
    for heard in answers(grammars, *[pattern(source)] * 4, **how):
        assert heard.last.reason == "stop" and heard.text == text


def test_the_longest_text_is_written_before_a_banned_end(grammars):
    for heard in answers(grammars, *[pattern("(true|null){2,4}")] * 4, ignore_eos=True):
        assert len(heard.text) == 16 and heard.last.reason == "stop"


def test_a_grammar_that_may_go_on_does_so_until_min_tokens(grammars):
    ends = dict.fromkeys(TOKENIZER.end_ids, 30.0)
    params = SamplingParams(seed=1, logit_bias=ends, **OFF)
    (early,) = answers(grammars, pattern("[ab]{1,40}"), params=params)
    assert len(early.ids) == 1
    (late,) = answers(grammars, pattern("[ab]{1,40}"), params=params, min_tokens=9)
    assert len(late.ids) == 9 and late.last.reason == "stop"


def test_what_is_banned_is_not_drawn(grammars):
    params = SamplingParams(seed=1, logit_bias={ord("a"): -100.0}, **OFF)
    (heard,) = answers(grammars, pattern("[ab]{4}"), params=params)
    assert heard.text == "bbbb"
    params = SamplingParams(seed=1, logit_bias={ord("a"): -100.0, ord("b"): -100.0}, **OFF)
    (heard,) = answers(grammars, pattern("[ab]{4}"), params=params)
    assert isinstance(heard.last, Failed) and heard.last.error.data["param"] == "logit_bias"


def test_a_sequence_whose_grammar_grows_too_complex_fails_alone(grammars, monkeypatch):
    monkeypatch.setattr(grammar_library, "_MOST_LEXER_STATES", 500)
    hard, easy = answers(
        grammars,
        pattern("([a-z ]*[aeiou][a-z ]{30}q)+"),
        pattern("[ab]{200}"),
        tokens=900,
        ignore_eos=True,
    )
    assert isinstance(hard.last, Failed) and hard.last.error.data["param"] == "it"
    assert easy.last.reason == "stop" and len(easy.text) == 200

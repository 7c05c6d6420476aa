"""From calls to work: what is made of them, and what is refused before any model work."""

from dataclasses import replace

import pytest

from hearth.backends.contract import ChoiceFinished, Finished, Request, SamplingParams, Started
from hearth.backends.engine.random_stream import choice_seed
from hearth.backends.engine.runner import RunnerInfo
from hearth.backends.engine.sequence import Clock
from hearth.backends.errors import InvalidParameter, PromptTooLong, UnsupportedParameter
from hearth.backends.preparer import Preparer
from hearth.backends.wire import Embed, Score

INFO = RunnerInfo(
    vocab_size=100,
    context=20,
    pool_tokens=64,
    max_sequences=4,
    max_batch_tokens=16,
    max_outputs=8,
    kv_bytes_per_token=1,
    end_ids=frozenset({99}),
    keeps_past=True,
    embedding_width=4,
)


class Letters:
    """A tokenizer: a token a character; 98 begins a text, 97 closes it, "~" is nothing."""

    control_texts = ()
    bos_text = eos_text = ""

    def __init__(self):
        self.encoded = []

    def encode(self, text, *, special, add_bos, add_eos=False):
        assert not special
        self.encoded.append(text)
        ids = [ord(letter) % 90 for letter in text if letter != "~"]
        return [98] * (add_bos and bool(ids)) + ids + [97] * (add_eos and bool(ids))

    def piece(self, token_id, *, special=False):
        return b"x"


@pytest.fixture
def tokenizer():
    return Letters()


@pytest.fixture
def preparer(tokenizer):
    return Preparer("tiny", INFO, tokenizer, None, None)


def with_info(**changes):
    return Preparer("tiny", replace(INFO, **changes), Letters(), None, None)


def seeds(generations):
    return [generation.sampler.seed for generation in generations]


def test_a_request_becomes_one_generation_that_knows_whose_it_is(preparer):
    said = []
    request = Request(text="abc", session="me", priority=7, max_tokens=3, stop=("END",))
    [made] = preparer.generations(5, request, said.append, Clock(arrived=1.5))
    assert (made.id, made.index, made.session, made.priority) == (5, 0, "me", 7)
    assert made.prompt_tokens == 4 and made.limits.max_tokens == 3
    assert made.clock.arrived == 1.5
    made.finish("cancelled")
    assert [type(event) for event in said] == [Finished]


def test_choices_share_a_prompt_that_is_tokenized_once(preparer, tokenizer):
    said = []
    request = Request(text="abc", n=3, sampling=SamplingParams(seed=11))
    made = preparer.generations(5, request, said.append, Clock(arrived=1.5))
    assert tokenizer.encoded == ["abc"]
    assert {generation.id for generation in made} == {5}
    assert [generation.index for generation in made] == [0, 1, 2]
    assert seeds(made) == [choice_seed(11, index) for index in range(3)]
    assert seeds(made)[0] == 11 and len(set(seeds(made))) == 3
    made[0].tokens.append(1)
    assert made[1].new_tokens == 0
    for generation in made:
        generation.on_admitted()
    for generation in made:
        generation.finish("cancelled")
    kinds = [type(event) for event in said]
    assert kinds == [Started, ChoiceFinished, ChoiceFinished, ChoiceFinished, Finished]


def test_choices_without_a_seed_get_a_fresh_one_that_the_others_follow_from(preparer):
    request = Request(text="abc", n=2)
    one = seeds(preparer.generations(1, request, print, Clock()))
    other = seeds(preparer.generations(2, request, print, Clock()))
    assert one[0] != other[0]
    assert one[1] == choice_seed(one[0], 1)


def test_each_choice_has_a_clock_of_its_own(preparer):
    made = preparer.generations(1, Request(text="abc", n=2), print, Clock())
    made[0].clock.first_token = 5.0
    assert made[1].clock.first_token == 0.0


def test_without_max_tokens_the_context_is_the_limit(preparer):
    [made] = preparer.generations(1, Request(text="abc"), print, Clock())
    assert made.limits.max_tokens == 16


@pytest.mark.parametrize(
    ("request_", "numbers"),
    [
        (Request(text="x" * 19), {"prompt_tokens": 20, "context": 20}),
        (
            Request(text="xx", max_tokens=18),
            {"prompt_tokens": 3, "max_tokens": 18, "context": 20},
        ),
        (
            Request(text="xx", min_tokens=18),
            {"prompt_tokens": 3, "min_tokens": 18, "context": 20},
        ),
        (
            Request(text="xx", max_tokens=18, n=16),
            {"prompt_tokens": 3, "max_tokens": 18, "context": 20},
        ),
    ],
)
def test_what_can_never_fit_is_refused_with_both_numbers(preparer, request_, numbers):
    with pytest.raises(PromptTooLong) as refused:
        preparer.generations(1, request_, print, Clock())
    assert refused.value.data == numbers
    assert all(str(number) in refused.value.message for number in numbers.values())


def test_choices_need_not_fit_at_the_same_time(preparer):
    assert len(preparer.generations(1, Request(text="xx", max_tokens=17, n=16), print, Clock()))


def test_where_the_memory_is_the_limit_the_hint_says_how_to_allow_more():
    with pytest.raises(PromptTooLong) as refused:
        with_info(pool_tokens=20).generations(1, Request(text="x" * 30), print, Clock())
    assert "--kv-budget" in refused.value.hint
    with pytest.raises(PromptTooLong) as refused:
        with_info(pool_tokens=21).generations(1, Request(text="x" * 30), print, Clock())
    assert "--kv-budget" not in refused.value.hint


def test_a_score_becomes_work(preparer):
    said = []
    made = preparer.scoring(3, Score(tuple(range(20)), "me"), said.append, Clock())
    assert (made.id, made.session) == (3, "me")
    made.finish("cancelled")
    assert said == [Finished("cancelled")]


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        ((), InvalidParameter, "empty"),
        ((1,), InvalidParameter, "one token"),
        ((1, 100), InvalidParameter, "100"),
        ((1,) * 21, PromptTooLong, "21"),
    ],
)
def test_scores_that_are_refused(preparer, ids, error, words):
    with pytest.raises(error, match=words):
        preparer.scoring(3, Score(ids), print, Clock())


def test_texts_are_tokenized_with_the_tokens_around_them(preparer):
    made = preparer.embedding(4, Embed(("a", "bc"), "last", "me"), print)
    assert (made.id, made.session, made.pooling) == (4, "me", "last")
    assert made.next_texts(100) == [[98, 7, 97], [98, 8, 9, 97]]


@pytest.mark.parametrize(
    ("texts", "error", "words"),
    [
        ((), InvalidParameter, "empty"),
        (("a", ""), InvalidParameter, r"texts\[1\] is empty"),
        (("a", "~"), InvalidParameter, r"texts\[1\] has no tokens"),
        (("a",) * 2049, InvalidParameter, "2,048"),
        (("a", "x" * 19), PromptTooLong, r"texts\[1\] has 21 tokens.*20"),
    ],
)
def test_texts_that_are_refused(preparer, texts, error, words):
    with pytest.raises(error, match=words):
        preparer.embedding(4, Embed(texts, "mean"), print)


def test_a_model_without_vectors_says_so():
    with pytest.raises(UnsupportedParameter, match="vectors"):
        with_info(embedding_width=0).embedding(4, Embed(("a",), "mean"), print)

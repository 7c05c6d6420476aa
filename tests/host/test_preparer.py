"""From calls to work: what is made of them, and what is refused before any model work."""

from dataclasses import replace

import pytest

from chat_templates import CHATML, HERMES, PlainRenderer
from hearth.backends.contract.events import ChoiceFinished, Embeddings, Finished, Prompt, Started
from hearth.backends.contract.messages import Message
from hearth.backends.contract.models import ModelSettings
from hearth.backends.contract.requests import BeamSearch, Constraint, Request, Tool
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.contract.wire import Embed, Frame, Rank, Score, encode
from hearth.backends.engine.random_stream import choice_seed
from hearth.backends.engine.runner import RunnerInfo
from hearth.backends.engine.sequence import Clock
from hearth.backends.errors import (
    ConflictingParameters,
    InvalidParameter,
    LimitExceeded,
    PromptTooLong,
    UnsupportedParameter,
)
from hearth.backends.worker.preparer import Preparer
from letters import LetterTokenizer

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

    bos_text = eos_text = ""
    infill_ids = None

    def __init__(self):
        self.encoded = []
        self.control_tokens = {}
        self.named_tokens = {}

    def encode(self, text, *, special, add_bos, add_eos=False):
        assert not special
        self.encoded.append(text)
        ids = [ord(letter) % 90 for letter in text if letter != "~"]
        return [98] * (add_bos and bool(ids)) + ids + [97] * (add_eos and bool(ids))

    def encode_pair(self, query, text):
        return [98, *(ord(letter) % 90 for letter in query + text), 97]

    def decode(self, ids):
        return "x" * len(ids)

    def piece(self, token_id, *, special=False):
        return b"x"


class Numbered(int):
    """A matcher that is only told from others."""

    notices = ()


class Grammars:
    """Records what is asked for; a matcher is a number."""

    def __init__(self):
        self.asked = []

    def matcher(self, lark, param):
        self.asked.append((lark, param))
        return Numbered(len(self.asked))


@pytest.fixture
def tokenizer():
    return Letters()


@pytest.fixture
def preparer(tokenizer):
    return Preparer("tiny", INFO, tokenizer, {}, None, Grammars())


def with_info(**changes):
    return Preparer("tiny", replace(INFO, **changes), Letters(), {}, None, Grammars())


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


def test_drafts_are_made_as_the_request_says_or_else_the_settings():
    settings = ModelSettings(speculate="auto", draft_tokens=7)
    made = Preparer("tiny", INFO, Letters(), {}, None, Grammars(), settings)
    cases = {None: "auto", "ngram": "ngram", "auto": "auto", "off": None}
    for asked, mode in cases.items():
        request = Request(text="abc", n=2, speculate=asked)
        for one in made.generations(5, request, print, Clock()):
            drafts = one.speculating
            assert (drafts and (drafts.mode, drafts.most)) == (mode and (mode, 7))


@pytest.mark.parametrize(
    ("setting", "asked", "seed", "rule"),
    [
        ("match", None, 3, "match"),
        ("match", "rejection", None, "rejection"),
        ("rejection", None, None, "rejection"),
        ("rejection", "match", 3, "match"),
        ("rejection", None, 3, None),
        ("match", "rejection", 3, None),
    ],
)
def test_rejection_is_refused_with_a_seed_alone(setting, asked, seed, rule):
    settings = ModelSettings(speculate="ngram", speculate_rule=setting)
    made = Preparer("tiny", INFO, Letters(), {}, None, Grammars(), settings)
    request = Request(text="abc", speculate_rule=asked, sampling=SamplingParams(seed=seed))
    if rule is None:
        with pytest.raises(ConflictingParameters, match="seed is 3") as refused:
            made.generations(5, request, print, Clock())
        assert refused.value.data["param"] == "speculate_rule"
        made.generations(5, replace(request, speculate_rule="match"), print, Clock())
    else:
        [one] = made.generations(5, request, print, Clock())
        assert one.speculating.rule == rule


@pytest.mark.parametrize(
    ("mode", "can_roll_back"), [("draft", True), ("medusa", True), ("ngram", False)]
)
def test_drafts_that_cannot_be_are_refused_by_name(mode, can_roll_back):
    made = with_info(can_roll_back=can_roll_back)
    with pytest.raises(UnsupportedParameter) as refused:
        made.generations(5, Request(text="abc", speculate=mode), print, Clock())
    assert refused.value.data["param"] == "speculate"
    [free] = made.generations(5, Request(text="abc", speculate="off"), print, Clock())
    assert free.speculating is None


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
        (Request(text="x" * 19), {"param": "text", "prompt_tokens": 20, "context": 20}),
        (
            Request(token_ids=(5,) * 30),
            {"param": "token_ids", "prompt_tokens": 30, "context": 20},
        ),
        (
            Request(text="xx", min_tokens=18),
            {"param": "min_tokens", "prompt_tokens": 3, "min_tokens": 18, "context": 20},
        ),
    ],
)
def test_what_can_never_fit_is_refused_with_both_numbers(preparer, request_, numbers):
    with pytest.raises(PromptTooLong) as refused:
        preparer.generations(1, request_, print, Clock())
    assert refused.value.data == numbers and refused.value.http_status == 400
    assert "This model's maximum context length is 20 tokens" in refused.value.message
    assert str(numbers["prompt_tokens"]) in refused.value.message


def test_more_new_tokens_than_are_free_are_clamped_with_a_notice(preparer):
    made = preparer.generations(1, Request(text="xx", max_tokens=18, n=2), print, Clock())
    assert [one.limits.max_tokens for one in made] == [17, 17]
    events = []
    (alone,) = preparer.generations(1, Request(text="xx", max_tokens=18), events.append, Clock())
    alone.on_admitted()
    assert "max_tokens is 18" in events[0].notices[0] and "17" in events[0].notices[0]
    (fitting,) = preparer.generations(1, Request(text="xx", max_tokens=17), events.append, Clock())
    fitting.on_admitted()
    assert events[1].notices == ()


@pytest.mark.parametrize(
    ("most", "max_tokens", "kept"),
    [(5, None, 5), (31, None, None), (-1, None, 19), (-1, 6, 14), (-1, 50, 10)],
)
def test_a_prompt_is_cut_to_its_last_tokens_on_request(preparer, most, max_tokens, kept):
    request = Request(
        token_ids=tuple(range(30)), truncate_prompt_tokens=most, max_tokens=max_tokens
    )
    if kept is None:
        with pytest.raises(PromptTooLong):
            preparer.generations(1, request, print, Clock())
        return
    said = []
    [made] = preparer.generations(1, request, said.append, Clock())
    assert made.tokens == list(range(30))[-kept:]
    made.on_admitted()
    assert f"from 30 to its last {kept} tokens" in said[0].notices[0]
    shown = preparer.render(request)
    assert (shown.ids, shown.text) == (tuple(made.tokens), "x" * kept)


def test_what_ends_an_answer_is_passed_on(preparer):
    request = Request(text="a", stop_token_ids=(7, 8), include_stop=True, skip_special_tokens=False)
    [made] = preparer.generations(1, request, print, Clock())
    assert made.limits.stop_ids == {7, 8}
    assert made.limits.include_stop and made.limits.show_special


def test_with_attention_sinks_neither_prompt_nor_answer_is_limited_by_the_context():
    def made(preparer, **fields):
        request = Request(token_ids=(0,) * 3000, attention_sinks=4, **fields)
        (one,) = preparer.generations(1, request, print, Clock())
        return one

    preparer = with_info(context=256, pool_tokens=256, page=16)
    one = made(preparer, max_tokens=5000)
    assert (len(one.tokens), one.limits.max_tokens) == (3000, 5000)
    assert (one.streaming.sinks, one.streaming.most, one.streaming.step) == (4, 256, 48)
    assert made(preparer).limits.max_tokens == 256
    assert made(preparer, min_tokens=400).limits.max_tokens == 400
    with pytest.raises(InvalidParameter, match="attention_sinks"):
        made(with_info(context=64, pool_tokens=64, page=16))
    with pytest.raises(UnsupportedParameter, match="its layers slide") as refused:
        made(with_info(no_streaming="its layers slide"))
    assert refused.value.param == "attention_sinks"
    with pytest.raises(ConflictingParameters):
        made(preparer, beams=BeamSearch(2))


def test_choices_need_not_fit_at_the_same_time(preparer):
    assert len(preparer.generations(1, Request(text="xx", max_tokens=17, n=16), print, Clock()))


def test_where_the_memory_is_the_limit_the_hint_says_how_to_allow_more():
    with pytest.raises(PromptTooLong) as refused:
        with_info(pool_tokens=20).generations(1, Request(text="x" * 30), print, Clock())
    assert "--kv-budget" in refused.value.hint
    with pytest.raises(PromptTooLong) as refused:
        with_info(pool_tokens=21).generations(1, Request(text="x" * 30), print, Clock())
    assert "--kv-budget" not in refused.value.hint


def test_a_prompt_that_can_never_fit_is_not_restored(preparer):
    """It would wait for memory, and all others behind it."""
    assert preparer.restoring(1, Request(text="x" * 19), print, Clock()).prompt_tokens == 20
    with pytest.raises(PromptTooLong):
        preparer.restoring(1, Request(text="x" * 20), print, Clock())


def test_a_score_becomes_work(preparer):
    said = []
    made = preparer.scoring(3, Score(tuple(range(20))), said.append, Clock(), "me")
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
    made = preparer.embedding(4, Embed(("a", "bc"), "last"), print, "me")
    assert (made.id, made.session, made.pooling) == (4, "me", "last")
    assert made.next_texts(100) == [[98, 7, 97], [98, 8, 9, 97]]


@pytest.mark.parametrize(
    ("texts", "error", "words"),
    [
        ((), InvalidParameter, "empty"),
        (("a", ""), InvalidParameter, r"texts\[1\] is empty"),
        (("a", "~"), InvalidParameter, r"texts\[1\] has no tokens"),
        (("a",) * 2049, InvalidParameter, "2,048"),
        (("a", "x" * 19), PromptTooLong, r"texts\[1\] is too long: 21 tokens > 20 maximum"),
    ],
)
def test_texts_that_are_refused(preparer, texts, error, words):
    with pytest.raises(error, match=words):
        preparer.embedding(4, Embed(texts, "mean"), print)


def test_texts_that_are_too_long_lose_their_end_on_request(preparer):
    texts = ("x" * 40, "ab", tuple(range(30)))
    made = preparer.embedding(4, Embed(texts, "mean", truncate=True), print)
    assert made.next_texts(100) == [[98, *[30] * 18, 97], [98, 7, 8, 97], list(range(20))]


def test_of_a_text_that_loses_its_end_only_the_beginning_is_tokenized(preparer, tokenizer):
    call = Embed(("x" * 1_000_000, "~" * 900 + "ab"), "mean", truncate=True)
    [long, late] = preparer.embedding(4, call, print).next_texts(100)
    assert long == [98, *[30] * 18, 97]
    assert late == [98, 7, 8, 97], "tokens that come late are found"
    assert max(map(len, tokenizer.encoded)) < 2_000


def test_scores_that_no_answer_could_carry_are_refused_before_they_are_computed():
    long = with_info(context=200_000, pool_tokens=200_000)
    ids = (1,) * 150_000
    assert long.scoring(4, Score(ids), print, Clock())
    with pytest.raises(LimitExceeded, match="150,000 items"):
        long.scoring(4, Score(ids, top=20), print, Clock())


def test_vectors_that_no_answer_could_carry_are_refused_before_they_are_computed():
    wide = with_info(embedding_width=4096)
    made = wide.embedding(4, Embed(("a",) * 1_800, "mean"), print)
    vectors = ((0.015625,) * 4096,) * len(made._texts)
    assert encode(Frame(4, Embeddings(vectors, 1_800)))
    with pytest.raises(LimitExceeded, match=r"2,048 items.* 1,8"):
        wide.embedding(4, Embed(("a",) * 2_048, "mean"), print)


def test_a_model_without_vectors_says_so():
    with pytest.raises(UnsupportedParameter, match="vectors"):
        with_info(embedding_width=0).embedding(4, Embed(("a",), "mean"), print)


WIDE = replace(INFO, context=4096, pool_tokens=4096, vocab_size=LetterTokenizer.vocab_size)
USER = Message("user", "Hi")
LOOK = Tool("look", "Looks it up.", {"type": "object"}, strict=True)
FIND = Tool("find")


@pytest.fixture
def grammars():
    return Grammars()


def chatting(grammars, template=HERMES, **options):
    tokenizer = LetterTokenizer(**options)
    return Preparer("tiny", WIDE, tokenizer, {"default": template}, PlainRenderer(), grammars)


def test_a_constraint_on_text_is_what_the_answer_follows(grammars):
    request = Request(text="ab", constraint=Constraint("choice", '["yes", "no"]'), n=2)
    made = chatting(grammars).generations(1, request, print, Clock())
    assert grammars.asked == [('start: ( "yes" | "no" )', "constraint")] * 2
    assert [generation._matcher for generation in made] == [1, 2]
    assert [generation._parser for generation in made] == [None, None]


def test_a_chat_that_asks_for_nothing_is_free(grammars):
    made = chatting(grammars).generations(1, Request(messages=(USER,), n=2), print, Clock())
    assert grammars.asked == []
    assert made[0]._parser is not made[1]._parser


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"constraint": Constraint("regex", "[ab]+")}, "constraint", ["/[ab]+/"]),
        ({"tools": (LOOK, FIND), "tool_choice": "required"}, "tools", ["look", "find"]),
        (
            {"tools": (LOOK, FIND), "tool_choice": "required", "forced_tool": "find"},
            "tools",
            ["find"],
        ),
        ({"tools": (LOOK,)}, "tools", ["look"]),
    ],
)
def test_what_is_asked_of_a_chat_becomes_a_grammar(grammars, fields, param, words):
    request = Request(messages=(USER,), **fields)
    chatting(grammars).generations(1, request, print, Clock())
    [(lark, named)] = grammars.asked
    assert named == param and all(word in lark for word in words)
    assert ("look" in lark) == ("look" in words)


def test_reasoning_that_is_continued_is_told_from_the_answer(grammars):
    thought = Message("assistant", "", "So far")
    request = Request(messages=(USER, thought), continue_last=True)
    [made] = chatting(grammars).generations(1, request, print, Clock())
    parts = [*made._parser.push(" and on</think>\n\nDone"), *made._parser.finish()]
    assert [(part.channel, part.text) for part in parts] == [
        ("reasoning", " and on"),
        ("content", "Done"),
    ]


def test_an_answer_that_is_continued_is_no_reasoning(grammars):
    request = Request(messages=(USER, Message("assistant", "It is <think>")), continue_last=True)
    [made] = chatting(grammars).generations(1, request, print, Clock())
    parts = [*made._parser.push(" a tag"), *made._parser.finish()]
    assert [(part.channel, part.text) for part in parts] == [("content", " a tag")]


@pytest.mark.parametrize("parallel", [False, True])
def test_one_call_at_most_is_a_limit_without_a_grammar_too(grammars, parallel):
    request = Request(messages=(USER,), tools=(FIND,), parallel_tool_calls=parallel)
    [made] = chatting(grammars).generations(1, request, print, Clock())
    assert made.limits.one_call is not parallel and grammars.asked == []


def test_tools_that_may_not_be_called_ask_for_nothing(grammars):
    request = Request(messages=(USER,), tools=(LOOK,), tool_choice="none")
    [made] = chatting(grammars).generations(1, request, print, Clock())
    assert grammars.asked == []
    parts = [*made._parser.push('<tool_call>\n{"name": "look"'), *made._parser.finish()]
    assert "".join(part.text for part in parts) == '<tool_call>\n{"name": "look"'


def test_special_tokens_of_the_format_are_shown_to_the_parser(grammars):
    class Marks(LetterTokenizer):
        @property
        def control_tokens(self):
            return {**super().control_tokens, "<tool_call>": 7}

    made = Preparer("tiny", WIDE, Marks(), {"default": HERMES}, PlainRenderer(), grammars)
    request = Request(messages=(USER,), tools=(LOOK,))
    assert made.generations(1, request, print, Clock())[0].limits.shown_ids == {7}
    text = Request(text="a")
    assert made.generations(1, text, print, Clock())[0].limits.shown_ids == frozenset()


def test_notices_pins_and_reuse_reach_the_generation(grammars):
    said = []
    request = Request(
        messages=(Message("system", "Rule.", keep_s=60), USER), tools=(LOOK,), reuse_prefix=False
    )
    [made] = chatting(grammars, CHATML).generations(1, request, said.append, Clock())
    made.on_admitted()
    assert "described" in said[0].notices[0]
    [(tokens, seconds)] = made.pins
    assert seconds == 60 and 0 < tokens < made.prompt_tokens
    assert len(made.cacheable_tokens()) < made.prompt_tokens
    made.finish("stop")
    assert said[-1].usage.kept_tokens == tokens


def test_infill_needs_tokens_for_it(grammars):
    request = Request(text="ab", suffix="cd")
    with pytest.raises(UnsupportedParameter) as refused:
        chatting(grammars).generations(1, request, print, Clock())
    assert refused.value.param == "suffix"
    [made] = chatting(grammars, infill_ids=(2, 3, 4)).generations(1, request, print, Clock())
    assert made.tokens == [0, 2, ord("a"), ord("b"), 3, ord("c"), ord("d"), 4]


def test_a_prompt_can_be_seen(grammars):
    preparer = chatting(grammars, CHATML, infill_ids=(2, 3, 4))
    chat = preparer.render(Request(messages=(USER,), tools=(LOOK,)))
    assert isinstance(chat, Prompt) and len(chat.notices) == 1
    assert chat.text.endswith("<|im_start|>assistant\n")
    assert LetterTokenizer().decode(chat.ids[1:]) == chat.text
    assert preparer.render(Request(text="ab")) == Prompt("ab", (0, 97, 98))
    assert preparer.render(Request(token_ids=(97, 0))) == Prompt("a<s>", (97, 0))
    assert preparer.render(Request(text="a", suffix="b")).ids == (0, 2, 97, 3, 98, 4)
    with pytest.raises(InvalidParameter, match="empty"):
        preparer.render(Request(messages=()))


def test_token_ids_become_vectors_as_they_are(preparer):
    made = preparer.embedding(4, Embed(((1, 2), "a"), "last"), print)
    assert made.next_texts(100) == [[1, 2], [98, 7, 97]]
    with pytest.raises(InvalidParameter, match="100"):
        preparer.embedding(4, Embed(((1, 100),), "last"), print)


def test_scores_know_the_likeliest(preparer):
    with pytest.raises(InvalidParameter, match="top"):
        preparer.scoring(3, Score((1, 2), top=21), print, Clock())
    assert preparer.scoring(3, Score((1, 2), top=3), print, Clock()).id == 3


def test_a_query_and_each_text_are_ranked_together():
    made = with_info(can_rank=True).ranking(4, Rank("a", ("b", "cd")), print, "me")
    assert (made.id, made.session) == (4, "me")
    assert made.next_texts(100) == [[98, 7, 8, 97], [98, 7, 9, 10, 97]]


@pytest.mark.parametrize(
    ("query", "texts", "error", "words"),
    [
        ("", ("a",), InvalidParameter, "query is empty"),
        ("a", (), InvalidParameter, "texts is empty"),
        ("a", ("b", ""), InvalidParameter, r"texts\[1\] is empty"),
        ("a", ("b", "x" * 19), PromptTooLong, r"texts\[1\] is too long: 22 tokens > 20 maximum"),
    ],
)
def test_ranks_that_are_refused(query, texts, error, words):
    with pytest.raises(error, match=words):
        with_info(can_rank=True).ranking(4, Rank(query, texts), print)


def test_a_model_that_does_not_rank_says_so(preparer):
    with pytest.raises(UnsupportedParameter, match="rank"):
        preparer.ranking(4, Rank("a", ("b",)), print)

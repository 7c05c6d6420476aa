"""Every field refuses, with its name, values that it cannot honour; everything in range passes."""

import math
from dataclasses import fields, replace

import pytest

from hearth.backends.contract.checks import typed
from hearth.backends.contract.fields import REQUEST_FIELDS, Field
from hearth.backends.contract.messages import Message
from hearth.backends.contract.requests import BeamSearch, Constraint, Request
from hearth.backends.contract.sampling import SAMPLING_FIELDS, SamplingParams
from hearth.backends.contract.wire import Embed, Rank, Score
from hearth.backends.engine.validate import (
    LONGEST_STOP_BYTES,
    validate,
    validate_embed,
    validate_rank,
    validate_score,
)
from hearth.backends.errors import ConflictingParameters, InvalidParameter

GOOD = Request(text="hello")
VOCAB = 100
ALL_FIELDS = [(field, True) for field in SAMPLING_FIELDS] + [
    (field, False) for field in REQUEST_FIELDS
]


def request_with(field, value, is_sampling):
    if is_sampling:
        return replace(GOOD, sampling=replace(SamplingParams(), **{field.name: value}))
    return replace(GOOD, **{field.name: value})


def refused(request, vocab_size=VOCAB):
    with pytest.raises(InvalidParameter) as caught:
        validate(typed(request), vocab_size)
    assert caught.value.message
    assert caught.value.hint
    return caught.value.param


def sampling(**changes):
    return replace(GOOD, sampling=SamplingParams(**changes))


def test_the_table_names_every_number_of_the_parameters():
    names = {field.name for field in SAMPLING_FIELDS}
    others = {"logit_bias", "dry_sequence_breakers"}
    assert names | others == {field.name for field in fields(SamplingParams)}


def test_defaults_pass_with_and_without_a_vocabulary():
    validate(GOOD, VOCAB)
    validate(GOOD, None)


@pytest.mark.parametrize(("field", "is_sampling"), ALL_FIELDS, ids=lambda part: str(part))
def test_ends_of_the_range(field: Field, is_sampling):
    validate(request_with(field, int(field.maximum), is_sampling), VOCAB)
    lowest = field.minimum + (0.001 if field.above_minimum else 0)
    validate(request_with(field, lowest, is_sampling), VOCAB)
    outside = [field.minimum - 1, int(field.maximum) + 1, 10**400, -(10**400)]
    if field.kind == "float":
        outside += [math.nan, math.inf, -math.inf, field.minimum - 1e-9]
    if field.above_minimum:
        outside.append(field.minimum)
    for value in outside:
        assert refused(request_with(field, value, is_sampling)) == field.name


@pytest.mark.parametrize(("field", "is_sampling"), ALL_FIELDS, ids=lambda part: str(part))
def test_wrong_types(field: Field, is_sampling):
    wrong = [True, False, "1", [1], {}, b"1"]
    wrong += [1.0] if field.kind == "int" else []
    wrong += [] if field.optional else [None]
    for value in wrong:
        assert refused(request_with(field, value, is_sampling)) == field.name
    if field.optional:
        validate(request_with(field, None, is_sampling), VOCAB)


def test_exactly_one_kind_of_prompt():
    assert refused(Request()) == "messages"
    assert refused(Request(text="a", token_ids=(1,))) == "token_ids"
    assert refused(Request(messages=(Message("user", "a"),), text="a")) == "text"


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (Request(text=""), "text"),
        (Request(text=5), "text"),
        (Request(text="\ud800"), "text"),
        (Request(messages=()), "messages"),
        (Request(messages="hi"), "messages"),
        (Request(messages=(Message("user", "a"), Message("robot", "b"))), "messages[1].role"),
        (Request(messages=(Message("user", None),)), "messages[0].content"),
        (Request(token_ids=()), "token_ids"),
        (Request(token_ids=(1, VOCAB)), "token_ids"),
        (Request(token_ids=(-1,)), "token_ids"),
        (Request(token_ids=(True,)), "token_ids[0]"),
        (Request(token_ids=(1.0,)), "token_ids[0]"),
        (Request(token_ids="12"), "token_ids"),
    ],
)
def test_prompts_that_cannot_be_answered(request_, param):
    assert refused(request_) == param


def test_prompts_that_can():
    validate(Request(messages=(Message("system", ""), Message("user", "hé🙂"))), VOCAB)
    validate(Request(token_ids=(0, VOCAB - 1)), VOCAB)
    validate(Request(token_ids=(10**6,)), None)


@pytest.mark.parametrize(
    "stop",
    [
        "text",
        ("",),
        ("x" * (LONGEST_STOP_BYTES + 1),),
        ("é" * (LONGEST_STOP_BYTES // 2 + 1),),
        ("a",) * 65,
        (1,),
        ("\udc80",),
        None,
    ],
)
def test_stops_that_are_refused(stop):
    assert refused(replace(GOOD, stop=stop)) in ("stop", "stop[0]")


def test_stops_that_pass():
    validate(replace(GOOD, stop=("x" * LONGEST_STOP_BYTES,) * 16), VOCAB)
    validate(replace(GOOD, stop_token_ids=(0, VOCAB - 1) * 512), VOCAB)


@pytest.mark.parametrize("ids", [5, None, ("a",), (True,), (-1,), (VOCAB,), (1,) * 1025])
def test_stop_tokens_that_are_refused(ids):
    assert refused(replace(GOOD, stop_token_ids=ids)) in ("stop_token_ids", "stop_token_ids[0]")


def test_a_prompt_is_not_cut_to_nothing():
    assert refused(replace(GOOD, truncate_prompt_tokens=0)) == "truncate_prompt_tokens"


@pytest.mark.parametrize(
    "bias",
    [
        {VOCAB: 1.0},
        {-1: 1.0},
        {True: 1.0},
        {"1": 1.0},
        {1: math.nan},
        {1: 100.1},
        {1: True},
        {1: "2"},
        [(1, 2.0)],
        None,
        dict.fromkeys(range(1025), 1.0),
    ],
)
def test_biases_that_are_refused(bias):
    assert refused(sampling(logit_bias=bias), vocab_size=VOCAB) == "logit_bias"


def test_biases_that_pass():
    validate(sampling(logit_bias={0: -100, VOCAB - 1: 100.0}), VOCAB)
    validate(sampling(logit_bias=dict.fromkeys(range(1024), 0.5)), None)


@pytest.mark.parametrize("breakers", ["\n", ("",), (1,), ("x",) * 65])
def test_breakers_that_are_refused(breakers):
    assert refused(sampling(dry_sequence_breakers=breakers)).startswith("dry_sequence_breakers")


def test_min_tokens_may_not_exceed_max_tokens():
    validate(replace(GOOD, min_tokens=5, max_tokens=5), VOCAB)
    assert refused(replace(GOOD, min_tokens=6, max_tokens=5)) == "min_tokens"


@pytest.mark.parametrize("value", [0, 1, None, "yes"])
@pytest.mark.parametrize(
    "name",
    [
        *("ignore_eos", "reuse_prefix", "continue_last", "parallel_tool_calls"),
        *("include_stop", "skip_special_tokens", "add_generation_prompt"),
    ],
)
def test_some_are_true_or_false(name, value):
    assert refused(replace(GOOD, **{name: value})) == name


def test_a_suffix_belongs_to_a_text():
    validate(Request(text="", suffix="b"), VOCAB)
    validate(Request(text="a", suffix=""), VOCAB)
    assert refused(Request(token_ids=(1,), suffix="b")) == "suffix"
    assert refused(Request(messages=(Message("user", "a"),), suffix="b")) == "suffix"
    assert refused(Request(text="a", suffix=5)) == "suffix"
    assert refused(Request(text="a", suffix="\ud800")) == "suffix"


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("json"),
        Constraint("json_schema", '{"type": "object"}'),
        Constraint("regex", "[a-z]+"),
        Constraint("choice", '["a", "b"]'),
    ],
)
def test_constraints_that_pass(constraint):
    validate(replace(GOOD, constraint=constraint), VOCAB)


@pytest.mark.parametrize(
    "constraint",
    [
        "json",
        Constraint("grammar"),
        Constraint("json_schema", "{"),
        Constraint("json_schema", "5"),
        Constraint("regex", ""),
        Constraint("regex", "x" * 1000),
        Constraint("choice", "[]"),
        Constraint("choice", '"a"'),
        Constraint("regex", "\ud800"),
    ],
)
def test_constraints_that_are_refused(constraint):
    assert refused(replace(GOOD, constraint=constraint)) == "constraint"


def test_intervals_are_written_for_people():
    by_name = {field.name: field.interval for field in SAMPLING_FIELDS}
    assert by_name["top_p"] == "(0, 1]"
    assert by_name["frequency_penalty"] == "[-2, 2]"


@pytest.mark.parametrize("session", ["x" * 257, "\N{SEAT}" * 65, "\ud800", 5, None])
def test_sessions_that_are_refused(session):
    assert refused(replace(GOOD, session=session)) == "session"


def test_sessions_that_pass():
    validate(replace(GOOD, session="x" * 256), VOCAB)
    validate(replace(GOOD, session=""), VOCAB)


@pytest.mark.parametrize(
    "given", [{"speculate": "ngram"}, {"speculate_rule": "match"}, {"attention_sinks": 4}]
)
def test_what_beam_search_does_not_do(given):
    request = Request(text="a", beams=BeamSearch(2))
    validate(replace(request, speculate="auto"), VOCAB)
    with pytest.raises(ConflictingParameters, match=f"{next(iter(given))} has no effect") as caught:
        validate(replace(request, **given), VOCAB)
    assert caught.value.data["param"] in given


@pytest.mark.parametrize(
    ("ids", "session", "param"),
    [
        ((), "", "token_ids"),
        ((1,), "", "token_ids"),
        ((1, VOCAB), "", "token_ids"),
        ((1, -1), "", "token_ids"),
        ((1, 1.0), "", "ids[1]"),
        ("12", "", "ids"),
        ((1, 2), "x" * 257, "session"),
    ],
)
def test_scores_that_cannot_be_had(ids, session, param):
    with pytest.raises(InvalidParameter) as caught:
        validate_score(typed(Score(ids)).ids, session, VOCAB)
    assert caught.value.param == param and caught.value.hint
    validate_score((0, VOCAB - 1), "me", VOCAB, 20)


@pytest.mark.parametrize("top", [-1, 21, True, 1.5, None])
def test_how_many_others_a_score_tells(top):
    with pytest.raises(InvalidParameter) as caught:
        validate_score((1, 2), "", VOCAB, typed(Score((1, 2), top)).top)
    assert caught.value.param == "top"


@pytest.mark.parametrize(
    ("texts", "pooling", "session", "param"),
    [
        ((), "model", "", "texts"),
        ("text", "model", "", "texts"),
        (("a",) * 2049, "model", "", "texts"),
        (("a", ""), "model", "", "texts[1]"),
        (("a", 5), "model", "", "texts[1]"),
        (("\ud800",), "model", "", "texts[0]"),
        (("a",), "max", "", "pooling"),
        (("a",), "mean", "x" * 257, "session"),
        (("a", ()), "mean", "", "texts[1]"),
        (((1, VOCAB),), "mean", "", "texts[0]"),
        (((True,),), "mean", "", "texts[0][0]"),
    ],
)
def test_vectors_that_cannot_be_had(texts, pooling, session, param):
    with pytest.raises(InvalidParameter) as caught:
        validate_embed(typed(Embed(texts, pooling)).texts, session, VOCAB)
    assert caught.value.param == param and caught.value.hint
    validate_embed(("a",) * 2048, "")
    validate_embed(((1, 2), "a", (10**6,)), "")


@pytest.mark.parametrize(
    ("query", "texts", "session", "param"),
    [
        ("", ("a",), "", "query"),
        (5, ("a",), "", "query"),
        ("a", (), "", "texts"),
        ("a", "b", "", "texts"),
        ("a", ("b",) * 2049, "", "texts"),
        ("a", ("b", ""), "", "texts[1]"),
        ("a", ((1, 2),), "", "texts[0]"),
        ("a", ("b",), "x" * 257, "session"),
    ],
)
def test_ranks_that_cannot_be_had(query, texts, session, param):
    with pytest.raises(InvalidParameter) as caught:
        validate_rank(query, typed(Rank(query, texts)).texts, session)
    assert caught.value.param == param and caught.value.hint
    validate_rank("a", ("b",) * 2048, "me")

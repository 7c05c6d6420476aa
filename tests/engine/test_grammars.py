"""Grammars: the texts that they allow, the refusals with their reasons, and that hostile ones do no
harm.
"""

import json
import subprocess
import sys
import threading

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits

from byte_tokenizer import ByteTokenizer, fits
from hearth.backends.contract.requests import Constraint
from hearth.backends.engine import grammars as module
from hearth.backends.engine.grammar_library import Vocabulary, make_tokenizer
from hearth.backends.engine.grammars import Grammars
from hearth.backends.errors import (
    BackendUnavailable,
    InternalError,
    InvalidParameter,
    LimitExceeded,
)
from hearth.backends.machine.helper import HelperLost
from hearth.backends.text.output.rules import content_rule, json_rule

TOKENIZER = ByteTokenizer()
VOCABULARY = TOKENIZER.vocab_size + 3
HARD = "([a-z ]*[aeiou][a-z ]{30}q)+"
GOOD = 'start: "hello" " world"?'


@pytest.fixture(scope="module")
def grammars():
    made = Grammars(TOKENIZER, VOCABULARY, TOKENIZER.end_ids)
    yield made
    made.close()


def lark(kind, source=""):
    source = source if isinstance(source, str) else json.dumps(source)
    return f"start: {content_rule(Constraint(kind, source), 'it')}"


def texts(mask):
    return {TOKENIZER.piece(int(token), special=True).decode() for token in np.flatnonzero(mask)}


def test_every_way_to_cut_the_text_is_allowed(grammars):
    matcher = grammars.matcher(GOOD, "it")
    assert texts(matcher.allowed()) == {"h", "hel", "hello"}
    assert matcher.allows(ord("h")) and not matcher.allows(ord("e"))


def test_the_end_is_allowed_where_the_text_is_complete_and_nowhere_else(grammars):
    matcher = grammars.matcher(GOOD, "it")
    ends = TOKENIZER.end_ids
    assert not any(matcher.allows(end) for end in ends)
    for byte in b"hello":
        matcher.accept(byte)
    assert all(matcher.allows(end) for end in ends) and not matcher.complete
    assert texts(matcher.allowed()) == {" ", "<|end|>", "<|stop|>"}
    for byte in b" world":
        matcher.accept(byte)
    assert matcher.complete and texts(matcher.allowed()) == {"<|end|>", "<|stop|>"}


@pytest.mark.parametrize(
    ("source", "text"), [(GOOD, "hello world"), (lark("json_schema", {"type": "string"}), '"abc"')]
)
def test_a_copy_goes_its_own_way(grammars, source, text):
    matcher = grammars.matcher(source, "it")
    matcher.accept(ord(text[0]))
    before = matcher.allowed().copy()
    ahead = matcher.copy()
    assert fits(ahead, text[1:]) and not fits(matcher.copy(), text)
    assert (matcher.allowed() == before).all()
    assert fits(matcher, text[1:])


def test_the_mask_has_the_size_of_the_logits_and_agrees_with_single_tokens(grammars):
    matcher = grammars.matcher(lark("json"), "it")
    for byte in b'{"a": [1, ':
        matcher.accept(byte)
        single = [matcher.allows(token) for token in range(VOCABULARY)]
        mask = matcher.allowed()
        assert mask.shape == (VOCABULARY,) and mask.tolist() == single
    assert not mask[TOKENIZER.vocab_size - 1 :].any(), "ids without a text"


def test_special_tokens_stand_only_where_they_are_named(grammars):
    free = grammars.matcher("start: /(.|\\n)*/", "it")
    assert not free.allows(TOKENIZER.call_id) and free.allows(TOKENIZER.call_id - 1)
    for name in (f"<[{TOKENIZER.call_id}]>", "<|call|>"):
        named = grammars.matcher(f'start: "a"? {name} "<|call|>"', "it")
        assert named.allows(TOKENIZER.call_id)
        named.accept(TOKENIZER.call_id)
        assert texts(named.allowed()) == {"<"}, "written out it is text"


def test_a_token_that_does_not_follow_is_an_error_of_its_own(grammars):
    matcher = grammars.matcher(GOOD, "it")
    with pytest.raises(InternalError, match="does not follow its grammar"):
        matcher.accept(ord("x"))


@pytest.mark.parametrize(
    ("kind", "source", "good", "bad"),
    [
        ("json", "", ['{}', '{"a": [1,{"b":null}]}'], ["[]", "1", " {}", '{"a":  1}', '{"a"\n:1}']),
        ("json_schema", True, ["[1]", '"é"', "null"], ["nul", "tru", "'a'"]),
        ("json_schema", {"enum": [1, "a/b\\", None]}, ["1", '"a/b\\\\"', "null"], ["2"]),
        ("regex", r"\d{2}/\d{2}", ["12/34"], ["1/23", "12/345"]),
        ("regex", "a\\/b[/]c\n|x\\\ny", ["a/b/c\n", "x\ny"], ["a/b", "x"]),
        ("regex", "^(é|//)+$", ["é//é"], ["/", "e"]),
        ("choice", ["yes", "yes!", 'a "b"\n', "é"], ["yes", "yes!", 'a "b"\n', "é"], ["y", "no"]),
        ("grammar", 'root ::= "a"+ | b-c # or\nb-c ::= [0-9]{2,3}', ["aa", "12"], ["", "1", "a1"]),
        ("grammar", 'root ::= fooBar\nfooBar ::=\n  "x" (\n "y" | # why\n "z" )*', ["xyz"], ["y"]),
        ("grammar", r'root ::= "\x41\u00e9\"\\/\n" [^"\\\x00-\x1F] .', ['Aé"\\/\n]\n'], ["Aé"]),
        ("grammar", r'root ::= [\]\u005b^&-] [^&a] "}" "<|im_end|>"', ["[x}<|im_end|>"], ["[&}"]),
        ("grammar", 'root ::= "(" root ")" | ""', ["", "((()))"], ["(()"]),
        ("grammar", '%llguidance {}\nstart: "a" N\nN: /[0-9]+/', ["a1", "a22"], ["a", "1"]),
    ],
)  # fmt: skip
def test_what_may_be_asked_for(grammars, kind, source, good, bad):
    for text in good:
        assert fits(grammars.matcher(lark(kind, source), "it"), text), text
    for text in bad:
        assert not fits(grammars.matcher(lark(kind, source), "it"), text), text


def test_rules_stand_beside_others_in_one_grammar(grammars):
    made = [content_rule(Constraint("choice", '["a", "b"]'), "it")]
    made += [content_rule(Constraint("regex", "c|d"), "it"), json_rule({"const": 1})]
    assert fits(grammars.matcher(f"start: {made[0]} {made[1]} {made[2]}", "it"), "bd1")


NESTED_SCHEMA = '{"properties":{"a":' * 5000 + "{}" + "}}" * 5000
TOO_MUCH = {
    "nested 5,000 deep": ("json_schema", NESTED_SCHEMA, "characters|levels"),
    "nested 33 deep": ("json_schema", '{"not":' * 33 + "{}" + "}" * 33, "33|32 levels"),
    "half a list": ("json_schema", "[" * 60_000, "levels"),
    "4,001 values": ("json_schema", {"enum": list(range(4000))}, "4,000 values"),
    "70 KB": ("json_schema", {"const": "x" * 75_000}, "65,536"),
    "remote": ("json_schema", {"$ref": "http://127.0.0.1/x"}, "Nothing is fetched"),
    "no schema": ("json_schema", [1], "a list"),
    "false": ("json_schema", "false", "nothing fits"),
    "not JSON": ("json_schema", "{", "not JSON"),
    "infinite": ("json_schema", '{"minimum": 1e999}', "cannot be written as JSON"),
    "half a pair": ("json_schema", '{"const": "\\ud800"}', "surrogate"),
    "our options": ("json_schema", {"x-guidance": {"lenient": True}}, "x-guidance"),
    "options within": ("json_schema", {"items": {"x-guidance": {}}}, "x-guidance"),
    "long pattern": ("json_schema", {"pattern": "a" * 513}, "513 bytes"),
    "long key": ("json_schema", {"patternProperties": {"a" * 513: {}}}, "513 bytes"),
    "30,000 brackets": ("regex", "[" * 30_000, "30,000 bytes"),
    "500 brackets": ("regex", "[" * 500, "cannot be followed"),
    "500 parentheses": ("regex", "(" * 500, "cannot be followed"),
    "back-reference": ("regex", r"(a)\1", "backreferences"),
    "look-ahead": ("regex", "(?=a)b", "look-ahead"),
    "lone backslash": ("regex", "a\\", "lone backslash"),
    "no pattern": ("regex", "", "empty"),
    "no choice": ("choice", [], "0 choices"),
    "many choices": ("choice", [str(n) for n in range(257)], "257 choices"),
    "long choices": ("choice", ["x" * 20_000], "20,000"),
    "empty choice": ("choice", ["a", ""], "empty choice"),
    "number": ("choice", ["a", 1], "list of texts"),
    "no grammar": ("grammar", " ", "empty"),
    "large grammar": ("grammar", f'root ::= "{"x" * 70_000}"', "65,536"),
    "nested grammar": ("grammar", "root ::= " + "(" * 20_000 + ")" * 20_000, "too complex"),
    "no root": ("grammar", 'start ::= "a"', "root"),
    "no such rule": ("grammar", 'root ::= "a"\n  b ::= c "x"', "line 2: Rule 'c' not found"),
    "half a rule": ("grammar", 'root ::= "a"\nb := "x"', "line 2: Expected ::="),
    "open string": ("grammar", 'root ::=\n"a', "line 2: Unexpected end"),
    "endless grammar": ("grammar", "root ::= root", "nothing can be written"),
    "unsupported": ("json_schema", {"type": "array", "uniqueItems": True}, "uniqueItems"),
    "unsatisfiable": ("json_schema", {"$ref": "#"}, "nothing can be written"),
    "contradiction": ("json_schema", {"type": "integer", "minimum": 2, "maximum": 1}, "nsatisfiab"),
    "combinations": (
        "json_schema",
        {
            "allOf": [
                {"anyOf": [{"properties": {f"a{i}": {"const": j}}} for j in range(8)]}
                for i in range(10)
            ]
        },
        "too complex",
    ),
    "large divisor": ("json_schema", {"type": "integer", "multipleOf": 982451653}, "too complex"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "source", "says"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_what_cannot_be_honoured_is_refused_by_name(grammars, kind, source, says):
    with pytest.raises(InvalidParameter, match=says) as caught:
        grammars.matcher(lark(kind, source), "it")
    assert caught.value.param == "it" and caught.value.hint
    assert fits(grammars.matcher(GOOD, "it"), "hello")


LARGE = {
    "repeated repetition": ("regex", "(a{1000}){1000}", "aaa"),
    "alternatives": ("regex", "(a|aa)+" * 60 + "b", "aaa"),
    "nested repetition": ("regex", "(x+x+)+y", "xxx"),
    "long memory": ("regex", "(.|\\n)*a.{400}", "aaa"),
    "long enum": ("json_schema", {"enum": [f"v{n:05}" for n in range(3900)]}, '"v00'),
    "long list": ("json_schema", {"type": "array", "maxItems": 10**9}, "[1, "),
    "long text": ("json_schema", {"type": "string", "minLength": 10**6}, '"abc'),
}


@pytest.mark.parametrize(("kind", "source", "text"), LARGE.values(), ids=LARGE)
def test_what_only_looks_hostile_is_followed(grammars, kind, source, text):
    matcher = grammars.matcher(lark(kind, source), "it")
    for byte in text.encode():
        assert matcher.allowed()[byte]
        matcher.accept(byte)


def write_anything(matcher, most):
    draw = np.random.default_rng(1)
    for _ in range(most):
        (tokens,) = np.nonzero(matcher.allowed()[:256])
        matcher.accept(int(draw.choice(tokens)))


def test_a_bound_that_is_met_on_the_way_ends_that_sequence_alone(grammars):
    source = lark("regex", HARD)
    matcher = grammars.matcher(source, "it")
    with pytest.raises(LimitExceeded, match="too complex to follow after") as caught:
        write_anything(matcher, 10_000)
    assert caught.value.param == "it"
    assert grammars.matcher(source, "it").allows(ord("a"))


def test_a_compiler_that_is_brought_down_is_an_error_of_that_grammar(grammars, monkeypatch):
    words = " | ".join(f'"word {number} of many"' for number in range(3000))  # Takes a while.
    monkeypatch.setattr(module, "_COMPILE_S", 1e-6)
    with pytest.raises(LimitExceeded, match="took more than 1e-06 s to compile"):
        grammars.matcher(f"start: {words}", "it")
    monkeypatch.undo()
    assert fits(grammars.matcher('start: "never seen"', "it"), "never seen")


@pytest.mark.parametrize("times", [1, 2])
def test_a_compiler_that_others_kill_is_asked_once_more(grammars, monkeypatch, times):
    ask, asked = grammars._helper.ask, []

    def killed(question, timeout_s):
        asked.append(question)
        if len(asked) <= times:
            raise HelperLost(overdue=False)
        return ask(question, timeout_s)

    monkeypatch.setattr(grammars._helper, "ask", killed)
    source = f'start: "killed {times}"'
    if times == 1:
        assert fits(grammars.matcher(source, "it"), "killed 1")
    else:
        with pytest.raises(LimitExceeded, match="or this machine is short of memory") as caught:
            grammars.matcher(source, "it")
        assert "Try again when more memory is free" in caught.value.hint
    assert len(asked) == 2


def test_threads_compile_at_once(grammars):
    outcomes = []

    def compile_some(number):
        for word in (f"only {number}", "shared"):
            outcomes.append(fits(grammars.matcher(f'start: "{word}"', "it"), word))

    threads = [threading.Thread(target=compile_some, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 8


def test_matchers_of_one_grammar_do_not_share_their_place(grammars):
    first, second = (grammars.matcher(GOOD, "it") for _ in range(2))
    first.accept(ord("h"))
    assert texts(first.allowed()) == {"e"} and "h" in texts(second.allowed())


def test_matchers_of_one_grammar_do_not_share_their_bounds(grammars):
    source = lark("regex", HARD)
    spent = grammars.matcher(source, "it")
    other = grammars.matcher(source, "it")
    with pytest.raises(InvalidParameter, match="too complex"):
        write_anything(spent, 10_000)
    write_anything(other, 100)


def test_copies_of_a_matcher_still_share_their_bound():
    """If this fails, `Grammars` can keep compiled grammars and copy them."""
    tokens = Vocabulary([*(bytes([value]) for value in range(256)), b""], [256], [256], list)
    bounds = LLParserLimits(max_lexer_states=100, verbose_errors=False)
    trie = make_tokenizer(tokens, [256])
    first = LLMatcher(trie, f"start: /{HARD}/", limits=bounds, log_level=0)
    second = first.deep_copy()
    draw = np.random.default_rng(1)
    while first.consume_token(ord("a") + int(draw.integers(16))):
        first.compute_bitmask()
    assert second.validate_tokens([ord("a")]) == 0


def test_what_passed_is_remembered_up_to_a_size(monkeypatch):
    monkeypatch.setattr(module, "_MOST_PROVEN", 2)
    monkeypatch.setattr(module, "_MOST_PROVEN_CHARACTERS", 100)
    sources = {word: f'start: "{word}"' for word in ("a", "b", "c", "x" * 80)}
    grammars = Grammars(TOKENIZER, VOCABULARY, TOKENIZER.end_ids)
    for word in ("a", "b", "a", "c"):
        grammars.matcher(sources[word], "it")
    assert set(grammars._proven) == {sources["a"], sources["c"]}
    grammars.matcher(sources["x" * 80], "it")
    assert set(grammars._proven) == {sources["c"], sources["x" * 80]}
    grammars.close()
    assert fits(grammars.matcher(sources["c"], "it"), "c")
    with pytest.raises(InternalError, match="closed"):
        grammars.matcher(sources["b"], "it")


def test_a_model_without_an_end_stops_where_nothing_can_follow():
    grammars = Grammars(TOKENIZER, VOCABULARY, frozenset())
    try:
        matcher = grammars.matcher('start: "hello"', "it")
        assert texts(matcher.allowed()) == {"h", "hel", "hello"}
        for byte in b"hello":
            matcher.accept(byte)
        assert matcher.complete
    finally:
        grammars.close()


def test_the_library_is_loaded_with_the_first_grammar_and_not_before():
    code = "import sys, hearth.backends.worker; print('llguidance' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr


def test_without_the_library_the_error_says_so(grammars, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(BackendUnavailable, match="llguidance"):
        grammars.matcher(GOOD, "it")

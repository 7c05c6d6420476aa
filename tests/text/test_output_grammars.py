"""What grammars allow is what parsers read; llguidance itself is the judge."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from hearth.backends.contract.events import Token, ToolCallPart
from hearth.backends.contract.requests import Tool
from hearth.backends.text.cut_json import read_json
from hearth.backends.text.output.families import described_format_of, format_of
from hearth.backends.text.output.tagged_format import OutputFormat

ARGUMENTS = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"type": "string", "enum": ["hot", "cold"]},
        "deep": {
            "type": "array",
            "items": {"type": "boolean"},
            "maxItems": 2,
        },
    },
    "required": ["n"],
    "additionalProperties": False,
}
STRICT = Tool("weather", parameters=ARGUMENTS, strict=True)
LOOSE = Tool("now")
GOOD = '{"n": 7}'
BAD = '{"m": 7}'


@dataclass(frozen=True)
class Family:
    template: str
    call: str
    """One call of the tool @name with the arguments @arguments."""
    two: str = ""
    """Two calls of `weather`; empty: the grammar never asks for two."""
    control: tuple[str, ...] = ()
    """Markers that are control tokens in vocabularies of the family."""
    think: tuple[str, ...] = ()
    """What begins and ends reasoning."""


FAMILIES = {
    "hermes": Family(
        "{{ tools }} <tool_call> <think> </think>",
        '<tool_call>\n{"name": "@name", "arguments": @arguments}\n</tool_call>',
        '<tool_call>\n{"name": "weather", "arguments": {"n": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": {"n": 2}}\n</tool_call>',
        think=("<think>\n", "</think>\n\n"),
    ),
    "hermes, tags as control tokens": Family(
        "{{ tools }} <tool_call> <think> </think>",
        '<tool_call>{"name": "@name", "arguments": @arguments}</tool_call>',
        control=("<tool_call>", "</tool_call>", "<think>", "</think>"),
        think=("<think>", "</think>"),
    ),
    "lists": Family(
        "{{ tools }} <TOOLCALL>[ </TOOLCALL>",
        '<TOOLCALL>[{"name": "@name", "arguments": @arguments}]</TOOLCALL>',
        '<TOOLCALL>[{"name": "weather", "arguments": {"n": 1}}, '
        '{"name": "weather", "arguments": {"n": 2}}]</TOOLCALL>',
    ),
    "qwen-coder": Family(
        "{{ tools }} <tool_call> <function=f> <parameter=p> <think> </think>",
        "<tool_call>\n<function=@name>@arguments</function>\n</tool_call>",
        think=("<think>\n", "</think>\n\n"),
    ),
    "functionary": Family(
        "{{ tools }} <function=f>",
        "<function=@name>@arguments</function>",
        '<function=weather>{"n": 1}</function><function=weather>{"n": 2}</function>',
    ),
    "llama3": Family(
        '{{ tools }} <|start_header_id|> <|python_tag|> "parameters"',
        '{"name": "@name", "parameters": @arguments}',
        '{"name": "weather", "parameters": {"n": 1}}; {"name": "weather", "parameters": {"n": 2}}',
        ("<|python_tag|>",),
    ),
    "mistral, older": Family(
        "{{ tools }} [TOOL_CALLS]",
        '[TOOL_CALLS][{"name": "@name", "arguments": @arguments}]',
        '[TOOL_CALLS][{"name": "weather", "arguments": {"n": 1}, "id": "abcdefgh1"}, '
        '{"name": "weather", "arguments": {"n": 2}}]',
        ("[TOOL_CALLS]",),
    ),
    "mistral, newer": Family(
        "{{ tools }} [TOOL_CALLS] [ARGS] [THINK] [/THINK]",
        "[TOOL_CALLS]@name[ARGS]@arguments",
        '[TOOL_CALLS]weather[ARGS]{"n": 1}[TOOL_CALLS]weather[ARGS]{"n": 2}',
        ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
        think=("[THINK]", "[/THINK]"),
    ),
    "deepseek, V3": Family(
        "{{ tools }} <｜tool▁call▁begin｜> ```json <think> </think>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>@name\n```json\n@arguments\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        control=(
            *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
            *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        ),
        think=("<think>\n", "</think>\n\n"),
    ),
    "deepseek, V3.1": Family(
        "{{ tools }} <｜tool▁call▁begin｜> <think> </think>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>@name<｜tool▁sep｜>@arguments"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜>"
        '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"n": 1}<｜tool▁call▁end｜>'
        '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"n": 2}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        think=("<think>", "</think>"),
    ),
    "harmony": Family(
        "{{ tools }} <|start|> <|channel|>",
        "<|channel|>commentary to=functions.@name <|constrain|>json<|message|>@arguments",
        control=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"),
        think=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
    ),
    "json": Family(
        "{{ tools }} <think> </think>",
        '{"name": "@name", "arguments": @arguments}',
        '[{"name": "weather", "arguments": {"n": 1}}, {"name": "weather", "arguments": {"n": 2}}]',
        think=("<think>\n", "</think>\n\n"),
    ),
}


class Vocabulary:
    """Every byte is a token, and so is every one of `control`; id 0 ends a text."""

    eos_token_id = 0
    bos_token_id = None

    def __init__(self, control: Sequence[str]) -> None:
        self.ids = {text: 1 + index for index, text in enumerate(control)}
        self.first_byte = 1 + len(control)
        self.tokens = [b"<eos>", *(text.encode() for text in control)]
        self.tokens += [bytes([value]) for value in range(256)]
        self.special_token_ids = list(range(self.first_byte))

    def __call__(self, text: str | bytes) -> list[int]:
        found: list[int] = []
        text = text if isinstance(text, str) else text.decode(errors="surrogateescape")
        while text:
            control = next((control for control in self.ids if text.startswith(control)), None)
            size = len(control) if control else 1
            if control:
                found.append(self.ids[control])
            else:
                raw = text[0].encode(errors="surrogateescape")
                found += [self.first_byte + value for value in raw]
            text = text[size:]
        return found


class Machine:
    """A grammar at work."""

    def __init__(self, family: Family, grammar: str | None) -> None:
        assert grammar is not None
        self.vocabulary = Vocabulary(family.control)
        self._tokenizer = LLTokenizer(TokenizerWrapper(self.vocabulary))
        assert LLMatcher.validate_grammar(grammar, self._tokenizer) == ""
        self._grammar = grammar

    def allowed(self, text: str) -> int:
        """How many tokens of `text` may come, from the first on."""
        matcher = LLMatcher(self._tokenizer, self._grammar, log_level=0)
        return matcher.validate_tokens(self.vocabulary(text))

    def allows(self, text: str) -> bool:
        """May `text` be the whole answer?"""
        matcher = LLMatcher(self._tokenizer, self._grammar, log_level=0)
        ids = self.vocabulary(text)
        return matcher.validate_tokens(ids) == len(ids) and (
            matcher.consume_tokens(ids) and matcher.is_accepting()
        )

    def random_answer(self, rng: random.Random) -> str:
        """An answer that the grammar allows, drawn token by token."""
        matcher = LLMatcher(self._tokenizer, self._grammar, log_level=0)
        said = b""
        while not matcher.is_stopped():
            mask = matcher.compute_bitmask()
            size = len(self.vocabulary.tokens)
            ids = [index for index in range(size) if mask[index // 8] >> (index % 8) & 1]
            ident = rng.choice(ids)
            if ident == 0:
                break
            assert matcher.consume_token(ident)
            said += self.vocabulary.tokens[ident]
        return said.decode()


def formatted(family: Family) -> OutputFormat:
    return format_of(family.template, Vocabulary(family.control).ids)


def machine(family: Family, prompt: str = "", **asked: object) -> Machine:
    defaults = {"content": None, "tools": (STRICT,), "required": False, "parallel": True}
    grammar = formatted(family).grammar(prompt, **{**defaults, **asked})  # type: ignore[arg-type]
    return Machine(family, grammar)


def call(family: Family, name: str = "weather", arguments: str = GOOD) -> str:
    return family.call.replace("@name", name).replace("@arguments", arguments)


def calls_in(family: Family, text: str, tools: Sequence[Tool]) -> list[tuple[str, str]]:
    """What the parser reads in `text`: nothing but calls, all of them complete."""
    parser = formatted(family).parser(tools, "")
    calls: list[tuple[str, str]] = []
    for part in [*parser.push(text), *parser.finish()]:
        if isinstance(part, Token):
            assert part.channel == "reasoning", part
        elif isinstance(part, ToolCallPart) and part.name:
            calls.append((part.name, part.arguments))
        else:
            calls[-1] = (calls[-1][0], calls[-1][1] + part.arguments)
    assert parser.calls == len(calls)
    assert parser.notices == ()
    return calls


every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
not_by_members = pytest.mark.parametrize(
    "family",
    [family for name, family in FAMILIES.items() if name != "qwen-coder"],
    ids=[name for name in FAMILIES if name != "qwen-coder"],
)


@every_family
def test_nothing_is_asked_nothing_is_bound(family: Family) -> None:
    output_format = formatted(family)
    for tools in ((), (LOOSE,)):
        assert (
            output_format.grammar("", content=None, tools=tools, required=False, parallel=True)
            is None
        )


@every_family
def test_a_required_call_is_a_call_and_the_parser_reads_it(family: Family) -> None:
    rng = random.Random(4)
    required = machine(family, tools=(STRICT,), required=True, parallel=False)
    think = family.think
    if think:  # A thought of the model's own would be drawn without end; the prompt closes it.
        required = machine(family, think[0].strip() + think[1], required=True, parallel=False)
    if family.template.endswith("<|channel|>"):
        assert required.allows(call(family))
        return
    for _ in range(10):
        answer = required.random_answer(rng)
        [(name, arguments)] = calls_in(family, answer, (STRICT,))
        assert name == "weather"
        value = json.loads(arguments)
        assert 0 <= value["n"] <= 99
        assert value.get("kind") in (None, "hot", "cold")
    assert required.allowed("I would rather talk.") == 0


@not_by_members
def test_a_required_call_follows_its_schema(family: Family) -> None:
    required = machine(family, tools=(STRICT, LOOSE), required=True)
    assert required.allows(call(family))
    assert required.allows(call(family, "now", "{}"))
    assert not required.allows(call(family, "weather", BAD))
    assert not required.allows(call(family, "rm", GOOD))
    assert calls_in(family, call(family), (STRICT, LOOSE)) == [("weather", GOOD)]


@not_by_members
def test_strict_tools_bind_calls_and_leave_text_free(family: Family) -> None:
    auto = machine(family, tools=(STRICT, LOOSE))
    before = "Well: <b> 1 { [ \n"
    if family.template.endswith("<|channel|>"):
        final = "<|channel|>final<|message|>"
        assert auto.allows(f"<|channel|>analysis<|message|>x<|end|><|start|>assistant{final}ok")
        before = "<|channel|>commentary<|message|>Look.<|end|><|start|>assistant"
        assert auto.allows(before + call(family))
    else:
        assert auto.allows(before)
    assert auto.allows(call(family))
    assert auto.allows(call(family, "now", '{"any": [1]}'))
    assert not auto.allows(call(family, "weather", BAD))
    assert not auto.allows(call(family, "rm", "{}"))


@every_family
def test_one_call_at_most_unless_several_are_allowed(family: Family) -> None:
    if family.two:
        assert len(calls_in(family, family.two, (STRICT,))) == 2
        for required in (True, False):
            assert machine(family, required=required, parallel=True).allows(family.two)
            assert not machine(family, required=required, parallel=False).allows(family.two)


@every_family
def test_reasoning_comes_before_what_is_asked(family: Family) -> None:
    if family.think:
        thought = "I may <muse> 12 {\n".join(family.think)
        assert machine(family, required=True, tools=(LOOSE,)).allows(
            thought + call(family, "now", "{}")
            if "<function=" not in family.template
            else f"{thought}<tool_call>\n<function=now>\n</function>\n</tool_call>"
        )
        begun = "" if "<|" in family.template else family.think[0]
        rest = thought.removeprefix(begun)
        final = "<|channel|>final<|message|>" if "<|" in family.template else ""
        answer = machine(family, begun, content='"yes" | "no"', tools=())
        assert answer.allows(f"{rest}{final}yes")
        assert not answer.allows(f"{rest}{final}perhaps")
        assert not answer.allows(rest)


@every_family
def test_an_answer_that_must_follow_a_rule(family: Family) -> None:
    final = "<|channel|>final<|message|>" if "<|channel|>" in family.template else ""
    answer = machine(family, content='"yes" | "no"', tools=())
    assert answer.allows(f"{final}no")
    assert not answer.allows(f"{final}never")
    if "<function=" not in family.template:
        either = machine(family, content='"yes" | "no"', tools=(STRICT,))
        assert either.allows(f"{final}no")
        assert either.allows(call(family))
        assert not either.allows(call(family, "weather", BAD))


def test_members_of_strict_tools_are_bound_where_they_are_written_one_by_one() -> None:
    family = FAMILIES["qwen-coder"]
    auto = machine(family, tools=(STRICT, LOOSE))

    def written(*members: tuple[str, str], name: str = "weather") -> str:
        values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in members)
        return f"Fine.\n<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"

    assert auto.allows(written(("n", "7"), ("kind", "hot"), ("deep", "[true]")))
    assert auto.allows(written(("n", "7")))
    assert not auto.allows(written(("kind", "hot")))
    assert not auto.allows(written(("n", "x")))
    assert not auto.allows(written(("n", "7"), ("kind", "warm")))
    assert not auto.allows(written(("n", "7"), ("more", "1")))
    assert auto.allows(written(("zone", "any\ntext < >"), name="now"))


def test_a_schema_that_members_cannot_show_is_asked_for_as_json() -> None:
    family = FAMILIES["qwen-coder"]
    tool = Tool(
        "pick",
        parameters={
            "type": "object",
            "properties": {"code": {"type": "string", "pattern": "^a+$"}},
        },
    )
    required = machine(family, tools=(tool,), required=True)
    text = call(family, "pick", '{"code": "aaa"}')
    assert required.allows(text)
    assert not required.allows(call(family, "pick", '{"code": "b"}'))
    assert calls_in(family, text, (tool,)) == [("pick", '{"code": "aaa"}')]


def test_control_tokens_are_named_by_id_and_never_part_of_free_text() -> None:
    family = FAMILIES["mistral, newer"]
    auto = machine(family, tools=(STRICT,))
    assert auto.allows("Hi.[TOOL_CALLS]weather[ARGS]" + GOOD)
    assert not auto.allows("Hi.[ARGS]")


def test_an_answer_that_the_prompt_began_goes_on_in_harmony() -> None:
    family = FAMILIES["harmony"]
    prompt = "<|start|>assistant<|channel|>final<|message|>"
    assert machine(family, prompt, content='"yes"', tools=()).allows("yes")
    output_format = formatted(family)
    assert (
        output_format.grammar(prompt, content=None, tools=(STRICT,), required=False, parallel=True)
        is None
    )


def test_described_tools_are_called_in_generic_json() -> None:
    family = Family("{{ messages }} <think> </think>", FAMILIES["json"].call)
    grammar = described_format_of(family.template).grammar(
        "<think>\n\n</think>\n\n", content=None, tools=(STRICT,), required=True, parallel=False
    )
    assert Machine(family, grammar).allows(call(family))


CUT_ARGUMENTS = '{"n": 42, "kind": "hot", "deep": [true, false]}'
MEMBERS = (
    "<tool_call>\n<function=weather>\n<parameter=n>\n42\n</parameter>\n<parameter=kind>\nhot\n"
    "</parameter>\n<parameter=deep>\n[true, false]\n</parameter>\n</function>\n</tool_call>"
)


def cut_answers(name: str) -> list[str]:
    """A call, cut after each of its tokens."""
    family = FAMILIES[name]
    text = MEMBERS if name == "qwen-coder" else call(family, arguments=CUT_ARGUMENTS)
    vocabulary = Vocabulary(family.control)
    ids = vocabulary(text)
    return [
        b"".join(vocabulary.tokens[ident] for ident in ids[:size]).decode(errors="ignore")
        for size in range(1, len(ids) + 1)
    ]


def read_cut(family: Family, text: str, tools: Sequence[Tool], *, required: bool) -> Sequence[str]:
    """Content, and of the call, if there is one, the name and the arguments."""
    parser = formatted(family).parser(tools, "", required=required)
    parts = [*parser.push(text), *parser.finish(cut=True)]
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    assert len([part for part in calls if part.name]) == bool(calls)
    said = "".join(part.text for part in parts if isinstance(part, Token))
    if not calls:
        return (said,)
    assert calls[0].name
    return said, calls[0].name, "".join(part.arguments for part in calls)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_required_call_that_is_cut_is_never_content(name: str) -> None:
    named = 0
    for text in cut_answers(name):
        for tools in ((STRICT,), (STRICT, LOOSE), (STRICT, Tool("weathers"))):
            said, *made = read_cut(FAMILIES[name], text, tools, required=True)
            assert not said, text
            if made:
                assert made[0] == "weather"
                value = read_json(made[1]) if made[1] else {}
                whole = json.loads(CUT_ARGUMENTS)
                assert list(value) == list(whole)[: len(value)]
                for key, one in value.items():
                    assert json.dumps(whole[key]).startswith(json.dumps(one).rstrip('"]'))
                named += 1
    assert named > len(cut_answers(name))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_that_is_cut_after_its_name_is_a_call(name: str) -> None:
    """Without being required to call, a model may have begun to say something else before that."""
    for text in cut_answers(name):
        said, *made = read_cut(FAMILIES[name], text, (STRICT, LOOSE), required=False)
        assert not made or not said, text
        if "weather" in text and not text.endswith("weather"):
            assert made, text


def test_what_ends_by_itself_is_not_taken_for_a_call() -> None:
    parser = formatted(FAMILIES["json"]).parser((STRICT, LOOSE), "")
    text = '{"name": "weath'
    assert [*parser.push(text), *parser.finish()] == [Token(text)]

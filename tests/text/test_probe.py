"""What a template loses is noticed, mended and said."""

import pytest

from hearth.backends.contract import Message
from hearth.backends.errors import TemplateError
from hearth.backends.text.probe import TemplateTraits, adapt, probe
from hearth.backends.text.template import render

KEEPS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
UPPER = "{% for m in messages %}<{{ m.role }}>{{ m.content|upper }}{% endfor %}"
DROPS = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
REFUSES = (
    "{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% if loop.previtem is defined and loop.previtem.role == m.role %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
LAST_ONLY = "<user>{{ messages[-1].content }}"
SYSTEM, USER, ANSWER = Message("system", "Rule."), Message("user", "Hi"), Message("assistant", "Yo")


def render_with(source):
    return lambda messages: render(
        source, [{"role": one.role, "content": one.content} for one in messages]
    )


@pytest.mark.parametrize(
    ("source", "traits"),
    [
        (KEEPS, TemplateTraits("kept", must_alternate=False)),
        (UPPER, TemplateTraits("kept", must_alternate=False)),
        (DROPS, TemplateTraits("dropped", must_alternate=False)),
        (REFUSES, TemplateTraits("refused", must_alternate=True)),
        (LAST_ONLY, TemplateTraits("dropped", must_alternate=True)),
    ],
)
def test_traits(source, traits):
    assert probe(render_with(source)) == traits


@pytest.mark.parametrize("source", ["{% if %}", "{{ raise_exception('never') }}", "fixed text"])
def test_a_template_without_use_is_an_error(source):
    with pytest.raises(TemplateError):
        probe(render_with(source))


@pytest.mark.parametrize(("source", "verb"), [(DROPS, "drops"), (REFUSES, "refuses")])
def test_a_lost_system_prompt_goes_into_the_first_message(source, verb):
    messages, notices = adapt([SYSTEM, USER, ANSWER, USER], probe(render_with(source)))
    assert messages == (Message("user", "Rule.\n\nHi"), ANSWER, USER)
    assert len(notices) == 1
    assert verb in notices[0]
    assert render_with(source)(messages) == "<user>Rule.\n\nHi<assistant>Yo<user>Hi"


def test_a_system_prompt_alone_becomes_the_first_message():
    messages, _ = adapt([SYSTEM], TemplateTraits("dropped"))
    assert messages == (Message("user", "Rule."),)


def test_turns_of_one_side_are_joined_where_they_must_alternate():
    messages, notices = adapt([USER, USER, ANSWER], TemplateTraits(must_alternate=True))
    assert messages == (Message("user", "Hi\n\nHi"), ANSWER)
    assert "joined" in notices[0]


def test_what_the_template_keeps_is_left_alone():
    chat = (SYSTEM, USER, USER)
    assert adapt(chat, TemplateTraits()) == (chat, ())
    assert adapt((USER, ANSWER), TemplateTraits("refused", must_alternate=True)) == (
        (USER, ANSWER),
        (),
    )


@pytest.mark.parametrize("reason", ["timeout", "crashed"])
@pytest.mark.parametrize("failing", [2, 3])
def test_a_render_that_gave_no_answer_is_no_trait(reason, failing):
    """A busy machine must not be remembered as a template that refuses the system prompt."""
    renders = []

    def flaky(messages):
        renders.append(messages)
        if len(renders) == failing:
            raise TemplateError("Too slow.", reason=reason)
        return render_with(KEEPS)(messages)

    with pytest.raises(TemplateError, match="Too slow"):
        probe(flaky)

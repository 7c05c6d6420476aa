"""What a template does to conversations, tools and calls is found out."""

import pytest

from chat_templates import CHATML, DEEPSEEK, GEMMA, GRANITE, HERMES, LLAMA3, MISTRAL, PlainRenderer
from hearth.backends.errors import TemplateError
from hearth.backends.text.conversation import OPENAI_CALLS, CallStyle, message_values, tool_values
from hearth.backends.text.probe import TemplateTraits, probe

RENDERER = PlainRenderer()
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
FIRST_SYSTEM = (
    "{% if messages[0].role == 'system' %}[{{ messages[0].content }}]{% endif %}"
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
STRICT_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
GATHERS = (
    "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
ONE_WITH_TOOLS = "{% if tools %}" + STRICT_SYSTEM + "{% else %}" + KEEPS + "{% endif %}"
PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}"
)
USER_PARTS = PARTS.replace("m.content is string", "m.content is string or m.role == 'system'")
FIRST_PART = PARTS.replace("in m.content %}", "in m.content[:1] %}")
PARTS_ONLY = (
    "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{{ part.text }}{% endfor %}"
    "{% endfor %}"
)
LAST_ONLY = "<user>{{ messages[-1].content }}"


def render_with(source):
    def render_one(messages, tools=(), calls=OPENAI_CALLS):
        values = message_values(messages, calls)
        return RENDERER.render(source, values, tools=tool_values(tools) or None)

    return render_one


@pytest.mark.parametrize(
    ("source", "traits"),
    [
        (KEEPS, ("kept", False)),
        (UPPER, ("kept", False)),
        (DROPS, ("dropped", False)),
        (REFUSES, ("refused", True)),
        (LAST_ONLY, ("dropped", True)),
    ],
)
def test_traits_of_plain_chats(source, traits):
    found = probe(render_with(source))
    assert (found.system, found.must_alternate) == traits
    assert not found.shows_tools and found.calls is None


@pytest.mark.parametrize(
    ("source", "late"),
    [
        (KEEPS, True),
        (HERMES, True),
        (FIRST_SYSTEM, False),
        (STRICT_SYSTEM, False),
        (GATHERS, False),
        (ONE_WITH_TOOLS, False),
    ],
)
def test_whether_system_messages_stay_where_they_are(source, late):
    found = probe(render_with(source))
    assert found.system == "kept" and found.late_system == late


@pytest.mark.parametrize(
    ("source", "roles", "needed"),
    [
        (KEEPS, set(), False),
        (UPPER, set(), False),
        (HERMES, set(), False),
        (PARTS, {"user", "assistant", "system"}, False),
        (USER_PARTS, {"user", "assistant"}, False),
        (FIRST_PART, set(), False),
        (PARTS_ONLY, {"user", "assistant", "system"}, True),
    ],
)
def test_whether_content_may_have_parts(source, roles, needed):
    found = probe(render_with(source))
    assert (found.part_roles, found.needs_parts) == (roles, needed)
    assert found.system == "kept" and found.late_system


@pytest.mark.parametrize("source", ["{% if %}", "{{ raise_exception('never') }}", "fixed text"])
def test_a_template_without_use_is_an_error(source):
    with pytest.raises(TemplateError):
        probe(render_with(source))


@pytest.mark.parametrize("reason", ["timeout", "crashed"])
@pytest.mark.parametrize("failing", [2, 3, 4, 5])
def test_a_render_that_gave_no_answer_is_no_trait(reason, failing):
    """A busy machine must not be remembered as a template that refuses the system prompt."""
    renders = []

    def flaky(messages, tools=(), calls=OPENAI_CALLS):
        renders.append(messages)
        if len(renders) == failing:
            raise TemplateError("Too slow.", reason=reason)
        return render_with(KEEPS)(messages)

    with pytest.raises(TemplateError, match="Too slow"):
        probe(flaky)


@pytest.mark.parametrize(
    ("source", "traits"),
    [
        (HERMES, TemplateTraits()),
        (LLAMA3, TemplateTraits(several_calls=False, content_beside_calls=False)),
        (
            MISTRAL,
            TemplateTraits(
                must_alternate=True, calls=CallStyle(short_ids=True), content_beside_calls=False
            ),
        ),
        (DEEPSEEK, TemplateTraits(calls=CallStyle("text", "none"), content_beside_calls=False)),
        (CHATML, TemplateTraits(shows_tools=False, calls=None)),
        (GRANITE, TemplateTraits(calls=None)),
        (
            GEMMA,
            TemplateTraits(
                "refused", must_alternate=True, shows_tools=False, calls=None, results=False
            ),
        ),
    ],
    ids=["hermes", "llama 3", "mistral", "deepseek", "chatml", "granite", "gemma"],
)
def test_traits_of_families(source, traits):
    assert probe(render_with(source)) == traits


def test_arguments_in_python_s_notation_are_not_taken_for_json():
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    source += "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments }})"
    source += "{% endfor %}{% endfor %}"
    assert probe(render_with(source)).calls == CallStyle("text")

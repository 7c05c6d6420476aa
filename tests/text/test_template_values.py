"""A value that a request gives to the template changes something, or is what is anyway so, or is
refused by name.
"""

import pytest

from hearth.backends.errors import InvalidParameter, UnsupportedParameter
from hearth.backends.text.template_values import honoured_values


@pytest.mark.parametrize(
    ("asked", "read", "thinks", "given"),
    [
        ({}, (), False, {}),
        ({"enable_thinking": False}, ("enable_thinking",), True, {"enable_thinking": False}),
        ({"enable_thinking": False}, ("thinking",), True, {"thinking": False}),
        ({"thinking": True}, ("enable_thinking",), True, {"enable_thinking": True}),
        ({"enable_thinking": False}, (), False, {}),
        ({"enable_thinking": True}, (), True, {}),
        ({"reasoning_effort": "low"}, ("reasoning_effort",), True, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "none"}, ("enable_thinking",), True, {"enable_thinking": False}),
        ({"reasoning_effort": "none"}, (), False, {}),
        ({"preserve_thinking": False}, (), False, {}),
        ({"documents": [{"text": "x"}]}, ("documents",), False, {"documents": [{"text": "x"}]}),
        ({"documents": []}, (), False, {}),
        (
            {"enable_thinking": False, "reasoning_effort": "none"},
            ("enable_thinking",),
            True,
            {"enable_thinking": False},
        ),
    ],
)
def test_values_that_are_honoured(asked, read, thinks, given):
    assert honoured_values(asked, read, thinks=thinks) == given


@pytest.mark.parametrize(
    ("asked", "read", "thinks"),
    [
        ({"enable_thinking": True}, (), False),
        ({"thinking": False}, ("reasoning_effort",), True),
        ({"reasoning_effort": "none"}, (), True),
        ({"reasoning_effort": "low"}, (), False),
        ({"reasoning_effort": "low"}, ("enable_thinking",), True),
        ({"preserve_thinking": True}, ("enable_thinking",), True),
        ({"documents": ["x"]}, (), False),
    ],
)
def test_values_that_are_refused(asked, read, thinks):
    with pytest.raises(UnsupportedParameter) as refused:
        honoured_values(asked, read, thinks=thinks)
    assert refused.value.param == f"template_values.{next(iter(asked))}"
    assert refused.value.message and refused.value.hint


def test_values_that_contradict_each_other():
    asked = {"enable_thinking": True, "reasoning_effort": "none"}
    with pytest.raises(InvalidParameter, match="contradicts"):
        honoured_values(asked, ("enable_thinking",), thinks=True)

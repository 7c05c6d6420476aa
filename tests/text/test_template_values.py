"""A value that a request gives to the template changes something, or is so anyway, or has a notice;
only documents that the template would not show are refused.
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
    assert honoured_values(asked, read, thinks=thinks) == (given, ())


@pytest.mark.parametrize(
    ("asked", "read", "thinks"),
    [
        ({"enable_thinking": True}, (), False),
        ({"thinking": False}, ("reasoning_effort",), True),
        ({"reasoning_effort": "none"}, (), True),
        ({"reasoning_effort": "low"}, (), False),
        ({"reasoning_effort": "low"}, ("enable_thinking",), True),
        ({"preserve_thinking": True}, ("enable_thinking",), True),
        ({"preserve_thinking": False}, ("enable_thinking",), True),
    ],
)
def test_values_that_a_template_does_not_read_have_a_notice(asked, read, thinks):
    values, [notice] = honoured_values(asked, read, thinks=thinks)
    assert values == {} and notice.startswith(next(iter(asked)))


def test_the_other_values_are_honoured_all_the_same():
    asked = {"reasoning_effort": "high", "enable_thinking": False}
    values, notices = honoured_values(asked, ("enable_thinking",), thinks=True)
    assert values == {"enable_thinking": False} and len(notices) == 1


def test_documents_that_nobody_would_read_are_refused():
    with pytest.raises(UnsupportedParameter) as refused:
        honoured_values({"documents": ["x"]}, (), thinks=False)
    assert refused.value.param == "template_values.documents"


def test_values_that_contradict_each_other():
    asked = {"enable_thinking": True, "reasoning_effort": "none"}
    with pytest.raises(InvalidParameter, match="contradicts"):
        honoured_values(asked, ("enable_thinking",), thinks=True)

"""The tests of the endpoint's generation, asked of one whose model a second Hearth serves."""

from __future__ import annotations

from pathlib import Path

from second_hearth import same_tests

SERVER = Path(__file__).parents[1] / "server"
_UNSCORED = "a remote Hearth scores no text of others"
OTHERWISE = {
    "test_chat.py": {
        "test_arrays_of_the_documented_length_are_accepted": "the default system message is one"
        " more for the other one",
    },
    "test_streams.py": {
        "test_a_defect_is_500_and_says_nothing_of_the_inside": "the defect is the other one's",
    },
    "test_completions.py": {
        "test_choices_of_several_prompts_are_numbered_through": "two requests reach the script in"
        " any order",
        "test_every_token_of_an_echo_has_a_log_probability": _UNSCORED,
        "test_a_token_that_stands_before_the_text_moves_no_offset": _UNSCORED,
        "test_an_echo_that_fails_ends_the_others": _UNSCORED,
    },
    "test_responses.py": {},
    "test_anthropic.py": {
        "test_cached_and_kept_tokens_are_counted_apart": "a remote cache is the other end's own",
        "test_a_conversation_with_tools_reaches_the_model": "keep_s stays here, and it is said",
    },
}
"""What is not the same over a network, and why."""

for _name, _others in OTHERWISE.items():
    _found = same_tests(SERVER / _name, _others)
    globals().update({f"{test}__{_name[5:-3]}": function for test, function in _found.items()})

"""The native runner says what llama.cpp says, token by token in exact mode, whatever else runs and
whatever happens to a sequence on the way.
"""

import pytest

from guide_sessions import (
    ask_all,
    check_prefixes_of_a_running_one,
    check_together,
    encoded,
    runners,
    said_by_a_raw_loop,
)
from hearth.backends.contract.models import ModelSettings
from hearth.backends.native.load import open_model

EXACT = ModelSettings(
    kv_type="f32", flash_attention=False, threads=1, batch_threads=1, dtype="f32", context=1024
)
TOKENS = 40
QUESTIONS = [
    "How do I download a model?",
    "Where are the settings?",
    "What is a context length? Explain it in a few short sentences, please.",
    "Tell me about quantization and what Q4_K_M means for my laptop",
    "hello",
    "Which models fit into eight gigabytes of memory, and how do I find out?",
    "1 2 3 4 5 6 7",
    "Is my data sent anywhere?",
    "The endpoint listens on",
    "naïve café 你好",
]
BEGINNINGS = ["", "Please: ", "Once upon a time. ", "In two words, ", "\n\n- "]


@pytest.fixture(scope="module")
def truth(guide_f32):
    """[(prompt, what a raw loop of llama.cpp says)] of fifty prompts."""
    texts = [beginning + question for beginning in BEGINNINGS for question in QUESTIONS]
    prompts = encoded(open_model, guide_f32, texts)
    return said_by_a_raw_loop(guide_f32, prompts, TOKENS)


@pytest.fixture
def runner_of(guide_f32):
    """`runner_of(**settings)`: the f32 guide in exact mode, closed after the test."""
    with runners(open_model, guide_f32, EXACT) as make:
        yield make


def test_fifty_prompts_alone_are_answered_as_by_a_raw_loop_of_llama_cpp(truth, runner_of):
    runner = runner_of()
    for one in truth:
        check_together(runner, [one], preempted=False)


@pytest.mark.parametrize(
    "chunk", [*(pytest.param(size, marks=pytest.mark.slow) for size in (1, 64)), 7, 512]
)
def test_eight_at_once_say_the_same(truth, runner_of, chunk):
    runner = runner_of(max_sessions=8, max_batch_tokens=chunk)
    check_together(runner, truth[::3], preempted=False)


def test_when_put_aside_and_computed_again_they_say_the_same(truth, runner_of):
    token_bytes = runner_of().info.kv_bytes_per_token
    runner = runner_of(max_sessions=8, kv_budget_bytes=256 * token_bytes, context=256)
    check_together(runner, truth[::3], preempted=True)


def test_with_the_prefix_of_one_that_still_speaks_they_say_the_same(truth, runner_of):
    check_prefixes_of_a_running_one(runner_of(max_sessions=8), truth[:6])


def test_twelve_requests_in_a_small_pool_all_say_what_they_say_alone(runner_of):
    token_bytes = runner_of().info.kv_bytes_per_token
    prompts = [[(37 * n + k * k + k) % 4000 + 20 for k in range(100)] for n in range(12)]
    wide = runner_of(max_sessions=1)
    alone = [ask_all(wide, [prompt], 60)[0][0] for prompt in prompts]
    assert all(len(said) == 60 for said in alone)
    tight = runner_of(max_sessions=12, context=512, kv_budget_bytes=512 * token_bytes)
    assert tight.info.pool_tokens == 512
    together, engine = ask_all(tight, prompts, 60)
    assert together == alone
    assert engine.stats().live_tokens == 0

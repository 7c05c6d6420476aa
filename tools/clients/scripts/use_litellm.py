"""LiteLLM: four routes and more, streamed and not, its documented tool loop on each, and its
fallback for long prompts.
"""

from __future__ import annotations

import json

import litellm

from steps import ANSWER, API, CALLER, CITY, KEY, MODEL, ROOT, WEATHER, finish, step

litellm.telemetry = False
litellm.suppress_debug_info = True
ROUTES = {
    "openai/": {"api_base": API, "api_key": KEY},
    "hosted_vllm/": {"api_base": API, "api_key": KEY},
    "ollama/": {"api_base": ROOT},
    "ollama_chat/": {"api_base": ROOT},
    "anthropic/": {"api_base": ROOT, "api_key": KEY},
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "its name"}},
            "required": ["city"],
        },
    },
}
HELLO = [{"role": "user", "content": "Name one sea."}]

for route, settings in ROUTES.items():

    @step(route)
    def _(route: str = route, settings: dict[str, str] = settings) -> None:
        whole = litellm.completion(route + MODEL, HELLO, max_tokens=16, **settings)
        assert whole.choices[0].message.content
        stream = litellm.completion(route + MODEL, HELLO, max_tokens=16, stream=True, **settings)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    # LiteLLM asks for a call as JSON in the prompt, which the scripted model does not read.
    if route == "ollama/":
        continue

    @step(f"{route} tool loop")
    def _(route: str = route, settings: dict[str, str] = settings) -> None:
        messages: list[object] = [{"role": "user", "content": f"What is the weather in {CITY}?"}]
        first = litellm.completion(route + CALLER, messages, tools=[TOOL], **settings)
        message = first.choices[0].message
        messages.append(message)
        for call in message.tool_calls:
            assert json.loads(call.function.arguments) == {"city": CITY}
            messages.append(
                {
                    "tool_call_id": call.id,
                    "role": "tool",
                    "name": call.function.name,
                    "content": WEATHER,
                }
            )
        second = litellm.completion(route + CALLER, messages, tools=[TOOL], **settings)
        assert second.choices[0].message.content == ANSWER, second.choices[0].message


@step("embedding")
def _() -> None:
    for route in ("openai/", "ollama/"):
        answer = litellm.embedding(route + MODEL, input=["one", "two"], **ROUTES[route])
        assert len(answer.data) == 2


@step("context-window fallback")
def _() -> None:
    messages = [{"role": "user", "content": "sea " * 12_000}]
    try:
        litellm.completion("openai/" + MODEL, messages, max_tokens=4, **ROUTES["openai/"])
    except litellm.ContextWindowExceededError:
        pass
    else:
        raise AssertionError("a prompt longer than the context was accepted")
    router = litellm.Router(
        model_list=[
            {
                "model_name": name,
                "litellm_params": {"model": "openai/" + model, **ROUTES["openai/"]},
            }
            for name, model in (("short", MODEL), ("long", CALLER))
        ],
        context_window_fallbacks=[{"short": ["long"]}],
    )
    assert router.completion("short", messages, max_tokens=4).choices[0].message.content


finish()

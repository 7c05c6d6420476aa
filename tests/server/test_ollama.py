"""`/api/...`: the request that reaches the model, and the answer as Ollama's clients read it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import replace
from urllib.parse import unquote

import pytest

from fake_host import FakeHost
from gguf_builder import tiny_llama
from hearth.app.library.local import FoundModel
from hearth.app.server.ollama_models import digest, file_facts
from hearth.app.server.requests import with_keep_alive
from hearth.backends.contract.models import ModelSettings
from hearth.backends.errors import UnsupportedParameter

HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
ONCE = {"model": "tiny", "prompt": "Once"}
START = {"prompt_tokens": 7}
FINISH = {"finish": "stop", "notices": ["late"]}
HI = [START, {"text": "Hi"}, {"text": " there"}, {"finish": "stop"}]
CALL = {"call": {"position": 0, "id": "call_1", "name": "weather", "arguments": '{"city":'}}
MORE = {"call": {"position": 0, "arguments": '"Bern"}'}}
THINKS_AND_CALLS = [START, {"reasoning": "Hm."}, {"text": "See:"}, CALL, MORE]
THINKS_AND_CALLS += [{"finish": "tool_calls"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {}}}


class CuttingHost(FakeHost):
    """Records whether texts may be truncated."""

    def __init__(self, script):
        super().__init__(script)
        self.cut = []

    def backend(self, spec, session=""):
        backend = super().backend(spec, session)
        embed = backend.embed

        async def noting(texts, *, truncate=False, **more):
            self.cut.append(truncate)
            return await embed(texts, **more)

        backend.embed = noting
        return backend


def chat(made, **more):
    return made.post("/api/chat", {**HELLO, **more})


def generate(made, **more):
    return made.post("/api/generate", {**ONCE, **more})


def lines(reply):
    return [json.loads(line) for line in reply.body.decode().splitlines()]


def test_a_chat_is_streamed_unless_it_says_otherwise(endpoint) -> None:
    made = endpoint(HI, HI)
    reply = chat(made)
    assert reply.headers["content-type"].startswith("application/x-ndjson")
    *pieces, last = lines(reply)
    assert "".join(piece["message"]["content"] for piece in pieces) == "Hi there"
    assert not any(piece["done"] for piece in pieces)
    assert last["done"] and last["done_reason"] == "stop"
    assert (last["prompt_eval_count"], last["eval_count"]) == (7, 2)
    whole = chat(made, stream=False).json
    assert whole["message"] == {"role": "assistant", "content": "Hi there"} and whole["done"]


def test_thoughts_and_calls(endpoint) -> None:
    made = endpoint(THINKS_AND_CALLS, THINKS_AND_CALLS)
    whole = chat(made, stream=False, tools=[WEATHER]).json["message"]
    assert (whole["thinking"], whole["content"]) == ("Hm.", "See:")
    assert whole["tool_calls"][0]["function"] == {
        "name": "weather",
        "arguments": {"city": "Bern"},
    }
    *pieces, _ = lines(chat(made, tools=[WEATHER]))
    assert pieces[0]["message"]["thinking"] == "Hm."
    assert pieces[-1]["message"]["tool_calls"] == whole["tool_calls"]


def test_a_prompt_is_a_message_of_the_user_or_stands_as_it_is(endpoint) -> None:
    made = endpoint(HI, HI)
    assert generate(made, stream=False, system="Be brief.").json["response"] == "Hi there"
    assert [one["role"] for one in made.asked["messages"]] == ["system", "user"]
    assert lines(generate(made, raw=True))[-1]["done"]
    assert made.asked["text"] == "Once" and made.asked["messages"] is None


@pytest.mark.parametrize(
    ("given", "reached"),
    [
        ({"format": "json"}, {"constraint": {"kind": "json", "source": ""}}),
        ({"format": {"a": 1}}, {"constraint": {"kind": "json_schema", "source": '{"a": 1}'}}),
        ({"think": False}, {"template_values": {"enable_thinking": False}}),
        ({"think": "low"}, {"template_values": {"reasoning_effort": "low"}}),
        ({"think": "max"}, {"template_values": {"reasoning_effort": "xhigh"}}),
        ({"options": {"num_predict": 5}}, {"max_tokens": 5}),
        ({"options": {"num_predict": -1}}, {"max_tokens": None}),
        ({"options": {"stop": ["x"]}}, {"stop": ("x",)}),
    ],
    ids=str,
)
def test_fields_reach_the_model(endpoint, given, reached) -> None:
    made = endpoint(HI)
    reply = chat(made, **given)
    assert reply.status == 200, reply.body
    assert {name: made.asked[name] for name in reached} == reached


def test_options_have_ollamas_names(endpoint) -> None:
    made = endpoint(HI)
    chat(made, options={"repeat_penalty": 1.2, "repeat_last_n": 9, "temperature": 0, "top_k": -1})
    sampling = made.asked["sampling"]
    assert (sampling["repetition_penalty"], sampling["repetition_window"]) == (1.2, 9)
    assert (sampling["temperature"], sampling["top_k"]) == (0, 0)


@pytest.mark.parametrize(
    ("results", "calls"),
    [
        (["weather", "weather", "time"], [0, 2, 1]),
        (["time", "weather", "weather"], [1, 0, 2]),
        ([None, "weather", "other"], [0, 2, 1]),
    ],
)
def test_answers_of_tools_are_tied_to_calls_by_name_then_order(endpoint, results, calls) -> None:
    made = endpoint(HI)
    names = ("weather", "time", "weather")
    called = [{"function": {"name": name, "arguments": {}}} for name in names]
    messages = [
        *HELLO["messages"],
        {"role": "assistant", "content": "", "tool_calls": called},
        *({"role": "tool", "content": "12:00", "tool_name": name} for name in results),
    ]
    assert chat(made, messages=messages, tools=[WEATHER]).status == 200
    found = made.asked["messages"]
    ids = [one["id"] for one in found[1]["tool_calls"]]
    assert [one["tool_call_id"] for one in found[2:]] == [ids[at] for at in calls]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"options": {"num_ctx": 0}}, "options.num_ctx"),
        ({"options": {"temprature": 1}}, "options.temprature"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"options": {"repeat_penalty": 99}}, "options.repeat_penalty"),
        ({"messages": [{"role": "user", "content": "x", "images": ["a"]}]}, "images"),
        ({"template": "x"}, "template"),
    ],
    ids=str,
)
def test_refusals_name_the_field(endpoint, given, name) -> None:
    reply = chat(endpoint(), **given)
    assert reply.status == 400 and name in reply.json["error"]


def test_a_stream_that_fails_says_so_and_is_cut(endpoint) -> None:
    failed = [START, {"text": "Hi"}, {"error": {"code": "worker_died", "message": "dead"}}]
    reply = chat(endpoint(failed))
    assert "dead" in lines(reply)[-1]["error"] and not reply.complete


def test_nothing_asked_loads_and_no_time_unloads(endpoint) -> None:
    made = endpoint()
    reply = made.post("/api/generate", {"model": "tiny:latest"})
    assert reply.json["done_reason"] == "load"
    reply = made.post("/api/chat", {"model": "tiny", "keep_alive": 0})
    assert reply.json["done_reason"] == "unload" and len(made.host.unloaded) == 1


@pytest.mark.parametrize(
    ("asked", "vectors"),
    [(["a", "bb"], [[1.0, 5.0], [2.0, 5.0]]), ("bb", [[2.0, 5.0]]), ("", []), ([], [])],
    ids=str,
)
def test_vectors(endpoint, asked, vectors) -> None:
    made = endpoint()
    options = {"temperature": 0.1, "num_thread": 4}
    reply = made.post("/api/embed", {"model": "tiny", "input": asked, "options": options}).json
    assert reply["embeddings"] == vectors and reply["prompt_eval_count"] == 7 * bool(vectors)
    assert reply["total_duration"] >= reply["load_duration"] > 0
    assert reply["notices"] == [f"options.{name} has no effect." for name in options]
    assert [name for name, *_ in made.host.calls] == ["embed"] * bool(vectors)


@pytest.mark.parametrize(("given", "truncate"), [({}, True), ({"truncate": False}, False)])
def test_texts_are_cut_unless_that_is_refused(endpoint, given, truncate) -> None:
    made = endpoint(host_kind=CuttingHost)
    assert made.post("/api/embed", {"model": "tiny", "input": "a", **given}).status == 200
    assert made.host.cut == [truncate]


def test_the_older_url_gives_one_vector(endpoint) -> None:
    made = endpoint()
    reply = made.post("/api/embeddings", {"name": "tiny", "prompt": "bb", "options": {}})
    assert reply.json == {"embedding": [2.0, 5.0]}
    assert made.post("/api/embeddings", {"model": "tiny"}).json == {"embedding": []}


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_as_ollama_has_them(endpoint, stream) -> None:
    made = endpoint(HI, HI)
    for post in (chat, generate):
        found = lines(post(made, stream=stream, logprobs=True, top_logprobs=1))
        tokens = [token for line in found for token in line.get("logprobs", ())]
        assert [token["token"] for token in tokens] == ["Hi", " there"]
        likeliest = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105]}
        assert tokens[0] == {**likeliest, "top_logprobs": [likeliest]}


HINTS = {"num_gpu": 99, "num_thread": 8, "num_keep": 4, "mirostat": 2, "use_mmap": True}
NEUTRAL = {"mirostat": 0, "tfs_z": 1, "num_keep": 0, "penalize_newline": True}


@pytest.mark.parametrize("stream", [False, True])
def test_hints_have_no_effect_and_are_named(endpoint, stream) -> None:
    made = endpoint([{**START, "notices": ["early"]}, {"text": "x"}, FINISH], HI)
    body = {"stream": stream, "options": HINTS, "made_up_field": {"x": 1}}
    reply = chat(made, **body)
    names = [*(f"options.{name}" for name in HINTS), "made_up_field"]
    expected = [f"{name} has no effect." for name in names]
    assert lines(reply)[-1]["notices"] == [*expected, "early", "late"]
    assert reply.headers["hearth-notices"].startswith("options.num_gpu has no effect.")
    assert "notices" not in lines(chat(made, stream=stream, options=NEUTRAL, shift=False))[-1]


@pytest.mark.parametrize(
    ("num_ctx", "num_predict", "max_tokens"), [(300, None, 289), (300, 20, 20), (15, 20, 4)]
)
def test_num_ctx_limits_prompt_and_answer_together(
    endpoint, num_ctx, num_predict, max_tokens
) -> None:
    made = endpoint(HI)
    last = lines(chat(made, options={"num_ctx": num_ctx, "num_predict": num_predict}))[-1]
    assert made.asked["max_tokens"] == max_tokens and "notices" not in last


def test_a_larger_num_ctx_is_clamped(endpoint) -> None:
    made = endpoint(HI)
    [notice] = lines(chat(made, options={"num_ctx": 32_768}))[-1]["notices"]
    assert "32768" in notice and "512" in notice
    assert made.asked["max_tokens"] is None


def test_a_prompt_over_num_ctx_is_refused(endpoint) -> None:
    made = endpoint()
    reply = generate(made, stream=False, options={"num_ctx": 4})
    assert reply.status == 400 and not made.host.requests
    assert "maximum context length is 4 tokens" in reply.json["error"]


def test_loading_counts_in_the_durations(endpoint) -> None:
    last = chat(endpoint(HI), stream=False).json
    assert last["total_duration"] >= last["load_duration"] > 0


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/show", "/api/embed"])
def test_name_is_another_name_of_model(endpoint, path) -> None:
    body = {"name": "tiny:latest", "messages": HELLO["messages"], "prompt": "x", "input": "x"}
    assert endpoint().post(path, {**body, "stream": False}).status == 200


def test_a_suffix_is_filled_up_to(endpoint) -> None:
    made = endpoint(HI, HI)
    assert generate(made, suffix="end", stream=False).status == 200
    assert (made.asked["text"], made.asked["suffix"]) == ("Once", "end")
    assert generate(made, suffix="", system="Be brief.").status == 200
    refused = generate(made, suffix="end", system="Be brief.")
    assert refused.status == 400 and refused.json["param"] == "system"


def test_a_call_that_was_cut_comes_back_as_text_or_object(endpoint) -> None:
    made = endpoint(HI, HI)
    for arguments in ({"city": "Be"}, '{"city": "Be'):
        call = {"function": {"name": "weather", "arguments": arguments}}
        messages = [*HELLO["messages"], {"role": "assistant", "tool_calls": [call]}]
        assert chat(made, messages=messages, tools=[WEATHER]).status == 200
    assert made.asked["messages"][1]["tool_calls"][0]["arguments"] == '{"city": "Be'


def test_a_negative_seed_is_a_fresh_one_only_if_it_is_minus_one(endpoint) -> None:
    made = endpoint(HI, HI, flags={"seed": 5})
    for seed, reached in ((-1, None), (-2, 2**64 - 2)):
        chat(made, options={"seed": seed})
        assert made.asked["sampling"]["seed"] == reached


def running(made, **more):
    """A worker that has loaded the opened model."""
    return {"name": "tiny", "path": str(made.catalog.default.path), "info": {}, **more}


def test_models_are_listed(endpoint) -> None:
    made = endpoint()
    models = made.get("/api/tags").json["models"]
    assert models[0]["name"] == models[0]["model"] == "tiny:latest"
    assert "guide:latest" in {one["name"] for one in models}
    # Clients that list models here also name them at other endpoints.
    assert made.post("/v1/completions", {"model": "tiny:latest", "prompt": "Hi"}).status == 200
    assert len({one["digest"] for one in models}) == len(models)
    assert all(re.fullmatch("[0-9a-f]{64}", one["digest"]) for one in models)


def test_loaded_models_are_listed(endpoint) -> None:
    made = endpoint()
    assert made.get("/api/ps").json == {"models": []}
    engine = {"allocated_tokens": 100, "kv_bytes_per_token": 10}
    made = endpoint(workers=[running(made, keep_alive_s=-1, engine=engine)])
    [loaded] = made.get("/api/ps").json["models"]
    assert loaded["expires_at"].startswith("9999") and loaded["context_length"] == 512
    assert (loaded["size"], loaded["size_vram"]) == (401_000, 0)
    assert loaded["digest"] == made.get("/api/tags").json["models"][0]["digest"]


@pytest.mark.skipif(sys.platform == "win32", reason="no file name has a colon there")
def test_each_model_is_listed_under_a_name_that_reaches_it(endpoint, tmp_path, tiny_model) -> None:
    other = tmp_path / "models" / "Tiny:latest.gguf"
    other.parent.mkdir()
    other.write_bytes(tiny_model.read_bytes())
    made = endpoint()
    listed = [model["name"] for model in made.get("/api/tags").json["models"]]
    assert listed == ["tiny", "guide:latest", "Tiny:latest"]
    for name, path in (("tiny", tiny_model), ("Tiny:latest", other)):
        assert made.post("/api/generate", {"model": name}).status == 200
        assert made.host.specs[-1]["path"] == str(path)
    [loaded] = endpoint(workers=[running(made)]).get("/api/ps").json["models"]
    assert loaded["name"] == loaded["model"] == "tiny"


def test_a_model_is_shown_without_being_loaded(endpoint) -> None:
    made = endpoint(flags={"temperature": 0.5, "stop": ('"',), "context": 300}, workers=[])
    shown = made.post("/api/show", {"model": "guide"}).json
    assert "messages" in shown["template"] and "completion" in shown["capabilities"]
    assert shown["model_info"]["tokenizer.ggml.tokens"] is None
    assert not any("chat_template" in name for name in shown["model_info"])
    assert shown["parameters"].split() == [
        *("num_ctx", "300", "temperature", "0.5", "stop", r'"\""')
    ]
    verbose = made.post("/api/show", {"model": "guide", "verbose": True}).json["model_info"]
    assert len(verbose["tokenizer.ggml.tokens"]) > 100
    assert made.post("/api/show", {"model": "none"}).status == 404
    assert not made.host.specs


@pytest.mark.parametrize(
    ("template", "values", "capabilities"),
    [
        (None, {}, ["completion"]),
        ("{{ messages }} {{ tools }}", {}, ["completion", "tools"]),
        ("{% if enable_thinking %}<think></think>{% endif %}", {}, ["completion", "thinking"]),
        (None, {"tokenizer.ggml.fim_pre_token_id": 1}, ["completion", "insert"]),
        (None, {"llama.pooling_type": 1}, ["embedding"]),
    ],
    ids=str,
)
def test_capabilities_are_those_of_the_file(tmp_path, template, values, capabilities) -> None:
    path = tiny_llama(tmp_path / "own.gguf", template=template, extra=values)
    facts = file_facts(FoundModel("own", path, "library"), ModelSettings())
    assert list(facts.capabilities) == capabilities


def test_a_damaged_file_is_shown_with_its_problem(endpoint, tmp_path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "bad.gguf").write_bytes(b"GGUF")
    reply = endpoint().post("/api/show", {"model": "bad", "options": {}})
    assert reply.json["template"] == "" and len(reply.json["notices"]) == 2
    notices = map(unquote, reply.headers["hearth-notices"].split("; "))
    assert list(notices) == reply.json["notices"]


def test_a_digest_is_the_checksum_where_that_is_known(tmp_path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for name in ("a" * 64, "sha256-" + "b" * 64, "made.gguf", "other.gguf"):
        (blobs / name).write_bytes(b"1234")
    result = {"size_bytes": 4, "sha256": "c" * 64}
    (blobs / "made.gguf.json").write_text(json.dumps({"result": result}))
    (tmp_path / "linked.gguf").symlink_to(blobs / ("a" * 64))

    def of(path):
        return digest(FoundModel("x", path, "library"))

    assert of(tmp_path / "linked.gguf") == "a" * 64
    assert of(blobs / ("sha256-" + "b" * 64)) == "b" * 64
    assert of(blobs / "made.gguf") == "c" * 64
    before = of(blobs / "other.gguf")
    assert before == of(blobs / "other.gguf")
    for path in ("made.gguf", "other.gguf"):
        (blobs / path).write_bytes(b"12345")
    assert of(blobs / "other.gguf") != before and of(blobs / "made.gguf") != "c" * 64
    first, second = (tmp_path / f"split-0000{part}-of-00002.gguf" for part in (1, 2))
    first.symlink_to(blobs / ("a" * 64))
    second.write_bytes(b"12")
    before = of(first)
    second.write_bytes(b"123")
    assert len({of(first), before, "a" * 64}) == 3


def test_the_version_is_one_that_clients_accept(endpoint) -> None:
    found = endpoint().get("/api/version").json
    assert [int(part) for part in found["version"].split(".")] >= [0, 6, 4]


def test_no_character_of_a_text_ends_a_line(endpoint) -> None:
    """Ollama's client splits lines like Python's `splitlines`."""
    text = "a\u2028b\u2029c\x85d"
    reply = chat(endpoint([START, {"text": text}, {"finish": "stop"}]))
    found = [json.loads(line) for line in reply.body.decode().splitlines()]
    assert found[0]["message"]["content"] == text


def test_a_schema_that_allows_everything_is_a_schema(endpoint) -> None:
    made = endpoint(HI)
    chat(made, format={})
    assert made.asked["constraint"] == {"kind": "json_schema", "source": "{}"}


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_are_what_was_asked(endpoint, stream) -> None:
    made = endpoint()
    reply = chat(made, options={"num_predict": 0}, stream=stream)
    [whole] = lines(reply)
    assert whole["done"] and whole["done_reason"] == "length" and whole["message"]["content"] == ""
    assert whole["eval_count"] == 0 and whole["prompt_eval_count"] > 0
    assert not made.host.requests


def test_a_model_that_others_use_is_not_unloaded_under_them(endpoint) -> None:
    """The host unloads it when their requests have ended."""
    made = endpoint()
    made = endpoint(workers=[running(made, running=1)])
    reply = made.post("/api/chat", {"model": "tiny", "keep_alive": 0})
    assert reply.json["done_reason"] == "unload" and not made.host.unloaded
    assert made.host.specs[-1]["settings"]["keep_alive_s"] == 0


@pytest.mark.parametrize(
    ("asked", "kept_s"),
    [("5m0s", 300), ("1h30m", 5400), ("-1h0m0s", -3600), ("1.5h0.5s", 5400.5), ("7", 7)],
)
def test_times_are_read_as_go_writes_them(endpoint, asked, kept_s) -> None:
    made = endpoint(HI)
    assert chat(made, keep_alive=asked).status == 200
    assert made.host.specs[-1]["settings"]["keep_alive_s"] == kept_s
    for wrong in ("5m0", "m", "5m-1s", "5m 0s"):
        assert chat(made, keep_alive=wrong).status == 400


def test_a_model_of_another_machine_is_not_ours_to_keep(endpoint) -> None:
    chosen = asyncio.run(endpoint().catalog.find("tiny"))
    remote = replace(chosen, spec=replace(chosen.spec, backend="remote"))
    with pytest.raises(UnsupportedParameter, match="keep_alive"):
        with_keep_alive(remote, {"keep_alive": "5m"})
    assert with_keep_alive(remote, {}) == remote


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"a": 1e999, "b": NaN}', {"a": "1e999", "b": "NaN"}),
        (r'{"a": ["\ud800"]}', {"a": ["\ufffd"]}),
        ('{"a": ' * 900 + "1" + "}" * 900, {}),
        ('{"a": "cu', {"a": "cu"}),
        ('{"a": 1, "b": tr', {"a": 1}),
    ],
    ids=["no numbers", "no text", "too deep", "cut string", "cut literal"],
)
def test_arguments_that_json_lacks_break_no_answer(endpoint, written, read) -> None:
    call = {"call": {"position": 0, "id": "call_1", "name": "weather", "arguments": written}}
    steps = [START, call, {"finish": "tool_calls"}]
    made = endpoint(steps, steps)
    reply = chat(made, stream=False, tools=[WEATHER])
    assert reply.json["message"]["tool_calls"][0]["function"]["arguments"] == read
    reply = made.post("/v1/messages", {**HELLO, "max_tokens": 64})
    assert reply.json["content"][0]["input"] == read

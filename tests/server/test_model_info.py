"""`/v1/model/info`: the facts about loaded models, and about others."""

from __future__ import annotations

import pytest

URL = "/v1/model/info"


def worker(path, **more):
    return {"name": "tiny", "path": str(path), "info": {"backend_version": "b42"}, **more}


def test_the_opened_model_as_it_is_loaded(endpoint, tiny_model) -> None:
    made = endpoint(workers=[worker(tiny_model)])
    found = made.get(URL).json
    assert found == made.get(f"{URL}?model=TINY").json
    assert (found["model_name"], found["loaded"], found["quantization"]) == ("tiny", True, "F32")
    assert (found["backend"], found["backend_version"]) == ("llamacpp", "b42")
    assert (found["batch_size"], found["max_sequence_length"]) == (512, 512)
    assert (found["parameters"], found["size_bytes"]) == (100_000, 400_000)
    assert "tools" in found["capabilities"]
    assert made.host.specs == []


def test_a_model_that_is_not_loaded_is_read_and_not_loaded(endpoint, tiny_model) -> None:
    made = endpoint()
    found = made.get(URL).json
    assert (found["model_name"], found["loaded"], found["architecture"]) == ("tiny", False, "llama")
    assert found["size_bytes"] == tiny_model.stat().st_size
    assert found["parameters"] > 0 and found["trained_context"] > 0
    assert found["error"] is None
    unknown = ("batch_size", "max_sequence_length", "backend_version", "kv_type", "capabilities")
    assert [found[key] for key in unknown] == [None] * len(unknown)
    assert made.host.specs == []


def test_a_context_of_the_settings_is_known_before_the_model_is_loaded(endpoint) -> None:
    assert endpoint(flags={"context": 256}).get(URL).json["max_sequence_length"] == 256


def test_both_forms_have_the_same_keys(endpoint, tiny_model) -> None:
    loaded = endpoint(workers=[worker(tiny_model)]).get(URL).json
    assert list(loaded) == list(endpoint().get(URL).json)


def test_another_model_by_name(endpoint, tiny_model) -> None:
    found = endpoint(workers=[worker(tiny_model)]).get(f"{URL}?model=guide").json
    assert (found["model_name"], found["loaded"], found["quantization"]) == ("guide", False, "F16")


def test_one_that_is_loading_is_not_loaded(endpoint, tiny_model) -> None:
    assert endpoint(workers=[worker(tiny_model, info=None)]).get(URL).json["loaded"] is False


def test_a_changed_file_is_read_anew(endpoint, tmp_path, tiny_model) -> None:
    made = endpoint()
    (tmp_path / "models").mkdir(exist_ok=True)
    file = tmp_path / "models" / "other.gguf"
    file.write_bytes(tiny_model.read_bytes())
    assert made.get(f"{URL}?model=other").json["error"] is None
    file.write_bytes(b"GGUF and no more")
    found = made.get(f"{URL}?model=other").json
    assert found["error"] and found["architecture"] is None


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ("model=gpt-4", 404, "model"),
        ("model=tiny&model=tiny", 400, "model"),
    ],
)
def test_what_cannot_be_told_is_refused_by_name(endpoint, query, status, param) -> None:
    answer = endpoint().get(f"{URL}?{query}")
    assert (answer.status, answer.error["param"]) == (status, param)


def test_nobody_knows_without_a_host(endpoint) -> None:
    assert endpoint(unreachable="It is away.").get(URL).status == 503

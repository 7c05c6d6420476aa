"""`/v1/models`, `/health`, and which names a request may use."""

from __future__ import annotations

from openai.types import Model


def test_the_opened_model_comes_first_then_the_library(endpoint, tmp_path, tiny_model) -> None:
    made = endpoint()
    (tmp_path / "models" / "sub").mkdir(parents=True)
    (tmp_path / "models" / "sub" / "other.gguf").write_bytes(tiny_model.read_bytes())
    listed = made.get("/v1/models").json
    assert listed["object"] == "list"
    names = [Model.model_validate(model, strict=True).id for model in listed["data"]]
    assert names == ["tiny", "guide", "guide-draft", "other"]
    assert made.chat(model="OTHER").status == 200
    assert made.host.specs[-1]["path"].endswith("other.gguf")


def test_one_model(endpoint) -> None:
    made = endpoint()
    assert made.get("/v1/models/guide").json["owned_by"] == "bundled"
    missing = made.get("/v1/models/gpt-4")
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")


def test_names_with_a_folder(endpoint, tmp_path, tiny_model) -> None:
    made = endpoint()
    for folder in ("a", "b"):
        (tmp_path / "models" / folder).mkdir(parents=True)
        (tmp_path / "models" / folder / "x.gguf").write_bytes(tiny_model.read_bytes())
    assert made.get("/v1/models/a/x").json["id"] == "a/x"


def test_all_requests_for_a_model_load_it_alike(endpoint) -> None:
    made = endpoint(flags={"context": 256, "threads": 2})
    made.chat()
    made.chat(temperature=0)
    assert made.host.specs[0] == made.host.specs[1]
    assert made.host.specs[0]["settings"]["context"] == 256


def test_health(endpoint) -> None:
    assert endpoint().get("/health").json == {"status": "ok"}
    sick = endpoint(unreachable="The host does not answer.").get("/health")
    assert sick.status == 503 and sick.error["code"] == "host_unreachable"

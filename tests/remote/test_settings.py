"""Remote models in settings.toml: read, listed and chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from hearth.app.chosen import with_settings
from hearth.app.library.local import Library
from hearth.app.settings import Setting, Settings, default_document, load_settings
from hearth.backends.contract.models import ModelSettings
from hearth.backends.errors import ModelNotFound, SettingsError
from hearth.backends.remote.errors import RemoteKeyMissing, RemoteOffline
from hearth.backends.remote.server import RemoteServer

CLUSTER = """
[remotes."Cluster"]
url = "http://10.0.0.5:8000/v1/"
model = "Qwen/Qwen3-32B"
server = "vllm"
key_env = "CLUSTER_KEY"
timeout_s = 30
"""
NEAR = """
[remotes.near]
url = "http://127.0.0.1:8000"
"""


def load(folder: Path, text: str, **environ: str) -> Settings:
    file = folder / "settings.toml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file, environ)


def library(folder: Path, settings: Settings) -> Library:
    return Library(folder, folder / "bundled", settings.remotes.values())


def test_all_of_a_table(tmp_path: Path) -> None:
    assert load(tmp_path, CLUSTER).remotes == {
        "cluster": RemoteServer(
            "Cluster",
            "http://10.0.0.5:8000/v1",
            "Qwen/Qwen3-32B",
            "vllm",
            "CLUSTER_KEY",
            timeout_s=30.0,
        )
    }


def test_a_url_is_enough(tmp_path: Path) -> None:
    near = load(tmp_path, NEAR).remotes["near"]
    assert near == RemoteServer("near", "http://127.0.0.1:8000/v1")
    assert near.is_loopback and near.root == "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("https://a.b/openai/v1/", "https://a.b/openai/v1"),
        ("http://[::1]:9/", "http://[::1]:9/v1"),
        ("http://localhost", "http://localhost/v1"),
    ],
)
def test_urls(tmp_path: Path, url: str, base: str) -> None:
    found = load(tmp_path, f'[remotes.x]\nurl = "{url}"').remotes["x"]
    assert found.url == base and found.is_loopback == ("a.b" not in url)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[remotes.x]", "url: expected"),
        ('[remotes.x]\nurl = "ftp://a"', "url: expected"),
        ('[remotes.x]\nurl = "http://"', "url: expected"),
        ('[remotes.x]\nurl = "http://a:99999"', "url: expected"),
        ('[remotes.x]\nurl = "http://a b"', "url: expected"),
        ('[remotes.x]\nurl = "http://me:pass@a"', "name or password"),
        ('[remotes.x]\nurl = "http://a/v1?key=1"', "? or #"),
        ('[remotes.x]\nurl = "http://a"\nkey = "sk-1"', 'unknown key "key"'),
        ('[remotes.x]\nurl = "http://a"\nserver = "tgi"', "server: expected one of"),
        ('[remotes.x]\nurl = "http://a"\ntimeout_s = 0', "timeout_s: expected"),
        ('[remotes.x]\nurl = "http://a"\nkey_env = "A"\nkey_file = "b"', "key_env and key_file"),
        ('[remotes."a b"]\nurl = "http://a"', "cannot be the name"),
        ('[remotes."x.gguf"]\nurl = "http://a"', "cannot be the name"),
        ('[remotes.Guide]\nurl = "http://a"', "comes with Hearth"),
        ("remotes = 3", "must be a table"),
        (CLUSTER + "[models.cluster]\ncontext = 9", "which its own server loads"),
    ],
)
def test_what_cannot_be_used_is_said_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert words in caught.value.message and "settings.toml" in caught.value.message
    assert "pass@" not in str(caught.value)


def test_the_default_document_shows_a_remote_model(tmp_path: Path) -> None:
    _, _, shown = default_document().partition("another machine")
    table, _, _ = shown.partition("\n\n")
    lines = [line.removeprefix("# ") for line in table.splitlines()[1:]]
    text = "\n".join(lines).replace('url = ""', 'url = "http://a"')
    assert load(tmp_path, text).remotes == {"cluster": RemoteServer("cluster", "http://a/v1")}


def test_steps_that_not_every_server_has_are_off_until_somebody_sets_them(tmp_path: Path) -> None:
    sampling = load(tmp_path, CLUSTER).for_model("cluster").sampling
    assert (sampling.top_k, sampling.min_p, sampling.repetition_window) == (0, 0.0, -1)
    settings = load(tmp_path, CLUSTER + "[models.Cluster.sampling]\ntop_k = 5")
    assert settings.for_model("cluster").sampling.top_k == 5
    assert settings.for_model("other").sampling.top_k == 40
    settings = load(tmp_path, CLUSTER + "[sampling]\nmin_p = 0.2")
    assert settings.for_model("Cluster").sampling.min_p == 0.2


def test_a_remote_model_is_found_by_its_name_and_goes_before_files(tmp_path: Path) -> None:
    settings = load(tmp_path, CLUSTER)
    (tmp_path / "cluster.gguf").write_bytes(b"GGUF")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.gguf").touch()
    models = library(tmp_path, settings)
    assert {model.name for model in models.found()} == {"Cluster", "b", "cluster.gguf"}
    assert models.resolve("cluster.gguf").origin == "library"
    found = models.resolve("CLUSTER")
    assert found.origin == "remote" and found.remote == settings.remotes["cluster"]
    [listed] = [model for model in models.list() if model.origin == "remote"]
    assert (listed.url, listed.error, listed.size_bytes) == ("http://10.0.0.5:8000/v1", "", 0)
    with pytest.raises(ModelNotFound, match="no model"):
        models.resolve("clutter")


def test_two_models_of_one_server_are_two(tmp_path: Path) -> None:
    text = CLUSTER + CLUSTER.replace("Cluster", "second")
    found = library(tmp_path, load(tmp_path, text)).found()
    assert len({model.path for model in found}) == 2


def test_a_chosen_remote_model_is_its_url_and_takes_no_settings_of_files(tmp_path: Path) -> None:
    settings = load(tmp_path, CLUSTER + "[load]\ncontext = 4096")
    found = library(tmp_path, settings).resolve("cluster")
    spec = with_settings(found, settings).spec
    assert (spec.backend, spec.path) == ("remote", "http://10.0.0.5:8000/v1")
    assert (spec.name, spec.settings) == ("Cluster", ModelSettings())
    typed = settings.with_flags({"context": Setting(512, "--ctx")})
    assert with_settings(found, typed).spec.settings.context == 512


def test_offline_means_this_machine_alone(tmp_path: Path) -> None:
    settings = load(tmp_path, CLUSTER + NEAR, HF_HUB_OFFLINE="1")
    models = library(tmp_path, settings)
    assert with_settings(models.resolve("near"), settings).spec.backend == "remote"
    with pytest.raises(RemoteOffline, match=r"10\.0\.0\.5.*HF_HUB_OFFLINE") as caught:
        with_settings(models.resolve("cluster"), settings)
    assert caught.value.exit_code == 5


def test_a_file_has_no_remote_backend(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="remote"):
        load(tmp_path, 'backend = "remote"')


def test_a_key_in_a_file_is_read_if_nobody_else_can(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("  sk-1\n")
    file.chmod(0o600)
    text = '[remotes.x]\nurl = "http://a"\nkey_file = "key"'
    server = load(tmp_path, text).remotes["x"]
    assert server.key() == "sk-1" and "sk-1" not in repr(server)
    file.chmod(0o644)
    with pytest.raises(RemoteKeyMissing, match="read by others"):
        server.key()
    file.unlink()
    with pytest.raises(RemoteKeyMissing, match="cannot be read"):
        server.key()

"""Settings: who wins, where a value comes from, and what a mistake is told."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from hearth.app import settings_keys as keys
from hearth.app.cli.options import LOADING as LOADING_WITH_FLAG
from hearth.app.cli.options import flag_of
from hearth.app.settings import Setting, Settings, default_document, load_settings
from hearth.backends.contract.models import HostLimits, ModelSettings
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.errors import SettingsError
from hearth.backends.llamacpp.params import check_settings


def load(folder: Path, text: str = "", **environ: str) -> Settings:
    file = folder / "settings.toml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file, environ)


FILE = """
model = "tiny"
[load]
context = 1024
[sampling]
temperature = 0.1
top_k = 11
seed = 7
[models."Tiny"]
context = 256
kv_type = "q8_0"
system = "Be brief."
[models."Tiny".sampling]
temperature = 0.2
"""


def test_without_a_file_the_contract_s_defaults_hold(tmp_path: Path) -> None:
    settings = load_settings(tmp_path / "missing.toml", {})
    use = settings.for_model("any")
    assert use.load == ModelSettings()
    assert use.sampling == SamplingParams()
    assert (use.max_tokens, use.stop, use.system) == (None, (), "")
    assert set(use.origins.values()) == {"default"}


def test_flags_win_over_the_environment_over_the_model_over_the_file(tmp_path: Path) -> None:
    settings = load(tmp_path, FILE, HEARTH_TOP_K="22", HEARTH_SEED="8")
    settings = settings.with_flags({"seed": Setting(9, "--seed")})
    use = settings.for_model("TINY")
    assert use.load.context == 256
    assert use.load.kv_type == "q8_0"
    assert use.sampling.temperature == 0.2
    assert use.sampling.top_k == 22
    assert use.sampling.seed == 9
    assert use.system == "Be brief."
    other = settings.for_model("other")
    assert (other.load.context, other.sampling.temperature, other.system) == (1024, 0.1, "")


def test_the_origin_of_each_value_is_kept(tmp_path: Path) -> None:
    settings = load(tmp_path, FILE, HEARTH_TOP_K="22")
    origins = settings.with_flags({"min_p": Setting(0.5, "--min-p")}).for_model("tiny").origins
    assert origins["top_k"] == "HEARTH_TOP_K"
    assert origins["min_p"] == "--min-p"
    assert origins["temperature"] == f'{settings.file}, [models."Tiny".sampling]'
    assert origins["seed"] == f"{settings.file}, [sampling]"
    assert origins["top_p"] == "default"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("temprature = 1", ['"temprature"', "unknown key"]),
        ("[models.a]\ncontext = 1\n[models.A]\ndraft = 'b'", ["[models]", '"a" and "A"']),
        ("[remotes.a]\nurl = 'http://b'\n[remotes.A]\nurl = 'http://c'", ['"a" and "A"']),
        ("[aliases]\na = 'b'\nA = 'c'", ["[aliases]", '"a" and "A"']),
        (
            "[sampling]\ntemprature = 1",
            ['"temprature"', "[sampling]", "Did you mean temperature?"],
        ),
        ("ofline = true", ["Did you mean offline?"]),
        ("[smpling]\ntop_k = 1", ["Did you mean sampling?"]),
        ('[models."x"]\nkv = "f16"', ['"kv"', 'models."x"']),
        ('[models."x"]\ntemperature = 1', ["temperature", "unknown key"]),
        ('[models."x".sampling]\ncontext = 1', ["context", 'models."x".sampling']),
        ("[sampling]\ntemperature = 11", ["temperature", "from 0 to 10", "11"]),
        ("[sampling]\ntop_p = 0", ["top_p", "above 0 to 1"]),
        ("[sampling]\ntop_p = nan", ["top_p"]),
        ('[sampling]\ntop_k = "many"', ["top_k", "whole number", "'many'"]),
        ("[sampling]\ntop_k = 1.5", ["top_k", "whole number"]),
        ("[sampling]\ntop_k = true", ["top_k", "whole number"]),
        ("[sampling]\nstop = [1]", ["stop", "list of texts"]),
        ("[sampling]\nlogit_bias = {a = 1}", ["logit_bias", "token ids"]),
        ("[sampling]\nlogit_bias = {1 = 101}", ["logit_bias", "-100 to 100"]),
        ('[load]\nkv_type = "f8"', ["kv_type", "f32, f16, q8_0, q4_0, fp8", "'f8'"]),
        ('[load]\nkv_budget = "much"', ["kv_budget", "512MiB", "'much'"]),
        ("[load]\nkv_budget = 0", ["kv_budget", "512MiB"]),
        ("[load]\nkv_budget = 1.5", ["kv_budget", "512MiB"]),
        ('[load]\nkv_budget = "2000TiB"', ["kv_budget", "up to 1024TiB"]),
        ("[load]\nkv_budget_bytes = 1", ["Did you mean kv_budget?"]),
        ("[load]\nmemory_fraction = 1.1", ["memory_fraction", "above 0 to 1"]),
        ('[load]\nkv_pool = "huge"', ["kv_pool", "grow, static"]),
        ("[load]\ncontext = 0", ["context", "from 1"]),
        ("[load]\ncontext = " + "9" * 400, ["context", "a whole number", "999..."]),
        ("[load]\nkv_budget = " + "9" * 400, ["kv_budget", "512MiB", "999..."]),
        (f'[load]\nkv_budget = "{"9" * 5000}"', ["kv_budget", "512MiB", "999..."]),
        ("[sampling]\ntemperature = " + "9" * 400, ["temperature", "from 0 to 10", "999..."]),
        ("[sampling]\nseed = 0x" + "f" * 9999, ["seed", "a number of over 4,300 digits"]),
        ("[sampling]\nseed = " + "9" * 5000, ["4300 digits"]),
        (f"[sampling]\nlogit_bias = {{1 = {'9' * 400}}}", ["logit_bias", "-100 to 100"]),
        (f"[sampling]\nlogit_bias = {{{'9' * 5000} = 1}}", ["logit_bias", "token ids"]),
        ("offline = 1", ["offline", "true or false"]),
        ('backend = "vllm"', ["backend", "llamacpp"]),
        ("load = 3", ["load", "table"]),
        ("models = 3", ["models", "table"]),
        ("models.x = 3", ['models."x"', "table"]),
        ("a = = 1", ["line 1"]),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, said: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    for part in [str(tmp_path / "settings.toml"), *said]:
        assert part in caught.value.message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("HEARTH_TEMPERATURE", "hot", "a number from 0 to 10"),
        ("HEARTH_TOP_P", "2", "above 0 to 1"),
        ("HEARTH_OFFLINE", "perhaps", "true or false"),
        ("HEARTH_CONTEXT", "-1", "from 1"),
        ("HEARTH_CONTEXT", "9" * 400, "from 1"),
        ("HEARTH_CONTEXT", "9" * 5000, "from 1"),
        ("HEARTH_TEMPERATUR", "1", "Did you mean HEARTH_TEMPERATURE?"),
    ],
)
def test_a_mistake_in_a_variable_is_named(
    tmp_path: Path, variable: str, text: str, said: str
) -> None:
    with pytest.raises(SettingsError, match=variable) as caught:
        load(tmp_path, **{variable: text})
    assert said in caught.value.message


def test_variables_of_others_are_left_alone_and_reported(tmp_path: Path) -> None:
    settings = load(tmp_path, HEARTH_HOME="/x", HEARTH_DEBUG="1", HEARTH_SOMETHING_ELSE="1")
    assert settings.unknown_variables == ("HEARTH_SOMETHING_ELSE",)


@pytest.mark.parametrize(
    ("environ", "offline", "origin"),
    [
        ({}, False, "default"),
        ({"HF_HUB_OFFLINE": "1"}, True, "HF_HUB_OFFLINE"),
        ({"HF_HUB_OFFLINE": "0"}, False, "default"),
        ({"HEARTH_OFFLINE": "yes"}, True, "HEARTH_OFFLINE"),
        ({"HEARTH_OFFLINE": "0", "HF_HUB_OFFLINE": "1"}, False, "HEARTH_OFFLINE"),
    ],
)
def test_offline_has_two_variables(
    tmp_path: Path, environ: dict[str, str], offline: bool, origin: str
) -> None:
    settings = load(tmp_path, **environ)
    assert settings.offline is offline
    assert settings.all()["offline"].origin == origin


def test_auto_stands_for_undecided(tmp_path: Path) -> None:
    settings = load(tmp_path, "[load]\ncontext = 99\n", HEARTH_CONTEXT="auto", HEARTH_SEED="auto")
    use = settings.for_model("x")
    assert use.load.context is None
    assert use.sampling.seed is None
    assert use.origins["context"] == "HEARTH_CONTEXT"


def test_a_template_file_is_read_from_beside_the_settings(tmp_path: Path) -> None:
    (tmp_path / "my.jinja").write_text("{{ messages }}")
    settings = load(tmp_path, '[models."x"]\nchat_template = "my.jinja"')
    assert settings.for_model("x").load.chat_template == "{{ messages }}"
    assert settings.for_model("y").load.chat_template is None


def test_a_missing_template_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    settings = load(tmp_path, '[models."x"]\nchat_template = "gone.jinja"')
    with pytest.raises(SettingsError, match=r"gone\.jinja"):
        settings.for_model("x")


def test_an_empty_template_path_means_the_model_s_own(tmp_path: Path) -> None:
    settings = load(tmp_path, '[models."x"]\nchat_template = ""')
    assert settings.for_model("x").load.chat_template is None


@pytest.mark.parametrize("name", ["threads", "batch_threads", "max_batch_tokens", "max_sessions"])
def test_the_largest_value_of_a_key_is_one_that_the_runner_takes(name: str) -> None:
    high = keys.ALL[name].high
    assert high is not None
    check_settings(ModelSettings(**{name: int(high)}), max_sequences=256)


def test_the_printed_file_changes_nothing_and_all_its_lines_are_right(tmp_path: Path) -> None:
    document = default_document()
    assert load(tmp_path, document).for_model("x").load == ModelSettings()
    general, _, models = document.partition("\n# For one model")
    lines = [
        line.removeprefix("# ") if " = " in line else line for line in general.splitlines()[2:]
    ]
    settings = load(tmp_path, "\n".join(lines))
    assert settings.for_model("x").sampling == SamplingParams()
    assert {
        name for name, setting in settings.all().items() if setting.origin == "default"
    } == set()
    assert 'chat_template = ""' in models


@pytest.mark.parametrize("key", keys.ALL.values(), ids=keys.ALL)
def test_every_default_is_a_value_that_its_key_allows(key: keys.Key) -> None:
    default = keys.default_of(key)
    assert key.check(keys.AUTO if default is None else default) == default


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("stop", "END", ("END",)),
        ("stop", "", ()),
        ("logit_bias", "5=-100,6=1.5", {5: -100.0, 6: 1.5}),
        ("context", "32,768", 32768),
        ("seed", "1,234,567", 1234567),
        ("offline", "On", True),
        ("kv_type", "q4_0", "q4_0"),
        ("seed", str(2**64 - 1), 2**64 - 1),
    ],
)
def test_values_as_people_write_them(name: str, text: str, value: object) -> None:
    assert keys.ALL[name].parse(text) == value


@pytest.mark.parametrize("written", ['"512MiB"', "536870912", '"524288K"'])
def test_a_size_is_written_with_a_unit_or_in_bytes(tmp_path: Path, written: str) -> None:
    settings = load(tmp_path, f"[load]\nkv_budget = {written}")
    assert settings.for_model("x").load == ModelSettings(kv_budget_bytes=512 * 2**20)
    assert settings.all()["kv_budget"].value == 512 * 2**20


def test_the_keys_of_many_sessions_reach_the_model(tmp_path: Path) -> None:
    text = """
    [load]
    max_waiting = 3
    kv_pool = "static"
    memory_fraction = 0.5
    target_itl_ms = 20
    [models."tiny"]
    kv_budget = "2GB"
    """
    use = load(tmp_path, text, HEARTH_KV_BUDGET="auto").for_model("tiny")
    assert use.load == ModelSettings(
        max_waiting=3, kv_pool="static", memory_fraction=0.5, target_itl_ms=20.0
    )
    assert load(tmp_path, text).for_model("tiny").load.kv_budget_bytes == 2 * 10**9
    assert use.origins["kv_budget"] == "HEARTH_KV_BUDGET"


def test_the_page_of_settings_names_every_key_of_loading_with_its_flag_and_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    found = {
        tuple(cell.strip(" `") for cell in line.split("|")[1:4])
        for line in page.splitlines()
        if line.startswith("| `")
    }
    assert found == {
        (
            key.name,
            flag_of(key) if key in LOADING_WITH_FLAG else "",
            str(key.shown(keys.default_of(key))).replace("False", "false"),
        )
        for key in keys.LOADING
    }


def test_every_setting_of_a_model_has_a_key() -> None:
    named = {key.target for key in (*keys.LOADING, *keys.MODEL_ONLY)}
    assert {field.name for field in fields(ModelSettings)} <= named


@pytest.mark.parametrize("text", ["1,5", "12,34", ",5", "1,,000"])
def test_other_commas_are_not_dropped(text: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        keys.ALL["seed"].parse(text)


def test_how_much_the_host_may_have_loaded(tmp_path) -> None:
    assert load(tmp_path, "").host_limits == HostLimits()
    limits = load(tmp_path, 'models_memory = "8GB"', HEARTH_MAX_MODELS="2").host_limits
    assert limits == HostLimits(models_memory_bytes=8 * 10**9, max_models=2)
    assert load(tmp_path, "max_models = 2", HEARTH_MAX_MODELS="auto").host_limits == HostLimits()
    with pytest.raises(SettingsError, match="max_models"):
        load(tmp_path, "max_models = 0")


def test_aliases_are_names_of_models(tmp_path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[aliases]\nGPT-4o = "guide"\n')
    assert load_settings(file, {}).aliases == {"gpt-4o": "guide"}
    file.write_text("[aliases]\nx = 5\n")
    with pytest.raises(SettingsError, match="x must be the name of a model"):
        load_settings(file, {})

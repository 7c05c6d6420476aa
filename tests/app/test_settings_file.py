"""Changing one value of the user's settings file: the rest stays as it is written."""

import os
import tomllib

import pytest

from hearth.app.settings import load_settings
from hearth.app.settings_file import change, changed, forget_setting, write_setting
from hearth.app.settings_keys import ALL
from hearth.backends.errors import SettingsError

FILE = """\
# mine
model = "guide"   # the best

[load]
# as much as fits
context = 4096

[models."Qwen"]
context = 5
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "config" / "settings.toml"
    path.parent.mkdir()
    path.write_text(FILE)
    return path


def test_comments_and_order_stay(file):
    write_setting(file, ALL["context"], 8192)
    assert file.read_text() == FILE.replace("4096", "8192")


def test_a_model_keeps_its_table_whatever_its_capitals_are(file):
    change(file, ("models", "qwen"), "draft", "small")
    assert file.read_text() == f'{FILE}draft = "small"\n'


def test_a_top_level_key_comes_before_the_tables(file):
    write_setting(file, ALL["theme"], "nord")
    text = file.read_text()
    assert text.index('theme = "nord"') < text.index("[load]")
    assert text.replace('theme = "nord"\n', "") == FILE


@pytest.mark.parametrize(
    ("name", "value", "written"),
    [
        ("temperature", 0.5, 0.5),
        ("flash_attention", None, "auto"),
        ("kv_budget", 2**30, "1GiB"),
        ("stop", ("a\n", 'b"'), ["a\n", 'b"']),
        ("logit_bias", {42: -100.0}, {"42": -100.0}),
        ("offline", True, True),
    ],
)
def test_every_kind_of_value_is_read_again(file, name, value, written):
    key = ALL[name]
    write_setting(file, key, value)
    found = tomllib.loads(file.read_text())
    places = (found, found["load"], found.get("sampling", {}))
    assert [place[name] for place in places if name in place] == [written]
    assert load_settings(file, {}).all()[name].value == value


def test_what_is_taken_out_has_its_default_again(file):
    forget_setting(file, ALL["context"])
    assert load_settings(file, {}).all()["context"].origin == "default"
    assert "# as much as fits" in file.read_text()
    before = file.read_text()
    forget_setting(file, ALL["context"])
    forget_setting(file, ALL["temperature"])
    assert file.read_text() == before


def test_a_file_that_is_not_there_is_made_for_its_owner_alone(tmp_path):
    path = tmp_path / "new" / "settings.toml"
    change(path, ("keys",), "app.help", "f1,f12")
    assert load_settings(path, {}).keymap == {"app.help": "f1,f12"}
    assert path.stat().st_mode & 0o077 == 0 and path.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "written", ['[keys]\napp.help = "f2" # mine\napp.quit = "f9"\n', '[keys.app]\nhelp = "f2"\n']
)
def test_a_name_with_dots_may_be_written_without_quotes(tmp_path, written):
    path = tmp_path / "settings.toml"
    path.write_text(written)
    change(path, ("keys",), "app.help", "f3")
    assert path.read_text() == written.replace("f2", "f3")
    change(path, ("keys",), "app.jump", "f4")
    change(path, ("keys",), "app.help", None)
    assert "app.help" not in load_settings(path, {}).keymap
    assert load_settings(path, {}).keymap["app.jump"] == "f4"


def test_a_link_and_the_rights_of_the_file_stay(file, tmp_path):
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    file.chmod(0o640)
    write_setting(link, ALL["context"], 1024)
    assert link.is_symlink() and "1024" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o640
    assert os.listdir(file.parent) == ["settings.toml"]


@pytest.mark.parametrize("text", ["model = ", "unknown = 1\n", "load = 5\n"])
def test_a_file_with_a_mistake_is_left_as_it_is(file, text):
    file.write_text(text)
    with pytest.raises(SettingsError):
        write_setting(file, ALL["context"], 1024)
    assert file.read_text() == text


def test_a_value_that_could_not_be_read_again_is_never_written(file):
    with pytest.raises(SettingsError, match="context"):
        change(file, ("load",), "context", "many")
    assert file.read_text() == FILE


def test_a_crash_leaves_the_old_file(file, monkeypatch):
    def crash(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(SettingsError, match="No space left"):
        write_setting(file, ALL["context"], 1024)
    assert file.read_text() == FILE


def test_tables_written_with_dots_are_understood():
    text = changed("load.context = 3\n[sampling]\n", ("load",), "kv_type", "f16")
    assert tomllib.loads(text) == {"load": {"context": 3, "kv_type": "f16"}, "sampling": {}}

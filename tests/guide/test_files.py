"""The committed model files: small, whole, and of the shape that was promised."""

import math

import pytest

from guide_forms import FORMS, MODELS, derive, guide_path
from hearth.quant.gguf import preflight

LARGEST_BYTES = 16_000_000


@pytest.fixture(scope="module", params=MODELS)
def file(request):
    return preflight.check(guide_path(request.param))


def test_it_is_small_and_f16(file):
    assert file.size_bytes < LARGEST_BYTES
    assert file.file_type_name == "F16"
    assert file.architecture == "llama"
    assert file.context_length == 2048


def test_the_vocabulary_reaches_every_byte(file):
    tokens = {bytes(raw).decode() for raw in file.value("tokenizer.ggml.tokens").raw_strings()}
    assert 4096 <= len(tokens) <= 8192
    from gguf_builder import byte_alphabet

    assert tokens >= set(byte_alphabet())


def test_it_chats_with_a_system_role(file):
    assert "system" in file.chat_template or "role" in file.chat_template
    assert file.value("general.license") == "Apache-2.0"


def test_guide_has_rows_for_k_quants_and_its_promised_size():
    file = preflight.check(guide_path())
    assert file.parameter_count <= 7_500_000
    assert file.value("llama.embedding_length") % 256 == 0
    assert file.value("llama.feed_forward_length") % 256 == 0


def test_the_draft_has_the_same_vocabulary_and_about_a_million_parameters():
    guide, draft = (preflight.check(guide_path(name)) for name in MODELS)
    assert math.isclose(draft.parameter_count, 1e6, rel_tol=0.1)
    words = [list(f.value("tokenizer.ggml.tokens").raw_strings()) for f in (guide, draft)]
    assert words[0] == words[1]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_derived_and_well(form, tmp_path):
    file = preflight.check(derive(form, tmp_path))
    assert file.file_type_name == form

"""Models that could draft for another: the same tokens, and much smaller."""

from pathlib import Path

from gguf_builder import tiny_llama
from hearth.app.library.drafts import fitting_drafts
from hearth.app.library.local import Library


def test_what_has_the_same_tokens_and_is_much_smaller_can_draft(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "others.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    library = Library(tmp_path)
    guide = library.resolve("guide")
    heads = str(guide.path.with_name("guide.f16.medusa.safetensors"))
    assert fitting_drafts(guide, library) == ["guide-draft", heads]
    assert fitting_drafts(library.resolve("guide-draft"), library) == []

"""Files that `check` accepts, those that it tolerates as llama.cpp does, and the facts about a
checked file.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

import gguf_builder
from gguf_raw import (
    RawGguf,
    RawTensor,
    f32,
    i32,
    i32s,
    small_llama,
    string,
    strings,
    typed,
    u16,
    u32,
)
from hearth.quant.errors import CorruptFile, UnsupportedModel
from hearth.quant.gguf.families import FAMILIES
from hearth.quant.gguf.preflight import check
from hearth.quant.gguf.reader import read_header
from hearth.quant.gguf.types import TensorType


def _write(path: Path, raw: RawGguf) -> Path:
    path.write_bytes(raw.build())
    return path


@pytest.fixture
def raw() -> RawGguf:
    return small_llama()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def _as_architecture(raw: RawGguf, name: str) -> None:
    raw.keys = [
        (str(key).replace("llama.", f"{name}.", 1) if str(key).startswith("llama.") else key, value)
        for key, value in raw.keys
    ]
    raw.put("general.architecture", string(name))


class TestTolerated:
    """llama.cpp loads these files, and such files are published."""

    def test_tied_embedding(self, raw: RawGguf, target: Path) -> None:
        raw.tensors.remove(raw.tensor("output.weight"))
        check(_write(target, raw))

    def test_heads_as_one_value_a_layer(self, raw: RawGguf, target: Path) -> None:
        raw.put("llama.attention.head_count", i32s([2]))
        check(_write(target, raw))

    def test_no_head_count_kv(self, raw: RawGguf, target: Path) -> None:
        raw.drop("llama.attention.head_count_kv")
        raw.tensor("blk.0.attn_k.weight").dims = (32, 32)
        raw.tensor("blk.0.attn_v.weight").dims = (32, 32)
        assert check(_write(target, raw)).kv_bytes_per_token() == 2 * 32 * 2

    def test_padding_token_one_past_the_vocabulary(self, raw: RawGguf, target: Path) -> None:
        raw.put("tokenizer.ggml.padding_token_id", u32(12))
        check(_write(target, raw))

    def test_declared_vocabulary_size_that_differs(self, raw: RawGguf, target: Path) -> None:
        raw.put("llama.vocab_size", u32(10))
        check(_write(target, raw))

    def test_several_empty_tokens(self, raw: RawGguf, target: Path) -> None:
        raw.put("tokenizer.ggml.tokens", strings(["", "", *(f"t{i}" for i in range(10))]))
        check(_write(target, raw))

    def test_fused_query_key_value(self, raw: RawGguf, target: Path) -> None:
        for name in ("q", "k", "v"):
            raw.tensors.remove(raw.tensor(f"blk.0.attn_{name}.weight"))
        raw.tensors.append(RawTensor("blk.0.attn_qkv.weight", (32, 64)))
        check(_write(target, raw))

    def test_model_without_a_tokenizer(self, raw: RawGguf, target: Path) -> None:
        raw.put("tokenizer.ggml.model", string("no_vocab"))
        raw.drop("tokenizer.ggml.tokens")
        check(_write(target, raw))

    def test_version_2(self, raw: RawGguf, target: Path) -> None:
        raw.version = 2
        assert check(_write(target, raw)).version == 2

    def test_unknown_architecture_passes_the_general_checks(
        self, raw: RawGguf, target: Path
    ) -> None:
        _as_architecture(raw, "novel")
        raw.tensors = [RawTensor("something.weight", (32, 4))]
        assert check(_write(target, raw)).architecture == "novel"

    def test_unknown_architecture_still_needs_its_layers(self, raw: RawGguf, target: Path) -> None:
        _as_architecture(raw, "novel")
        raw.put("novel.block_count", u32(0))
        with pytest.raises(CorruptFile, match=r"novel\.block_count"):
            check(_write(target, raw))


class TestFamilies:
    """Each llama-like architecture requires its own tensors."""

    @pytest.mark.parametrize("name", ["qwen2", "mistral3", "gemma"])
    def test_same_tensors_as_llama(self, name: str, raw: RawGguf, target: Path) -> None:
        _as_architecture(raw, name)
        assert check(_write(target, raw)).architecture == name

    @pytest.mark.parametrize("name", ["qwen3", "gemma2", "gemma3"])
    def test_more_tensors_than_llama(self, name: str, raw: RawGguf, target: Path) -> None:
        _as_architecture(raw, name)
        with pytest.raises(CorruptFile, match="norm"):
            check(_write(target, raw))
        if FAMILIES[name].head_norms:
            raw.tensors += [
                RawTensor("blk.0.attn_q_norm.weight", (16,)),
                RawTensor("blk.0.attn_k_norm.weight", (16,)),
            ]
        if FAMILIES[name].post_norms:
            raw.tensors += [
                RawTensor("blk.0.post_attention_norm.weight", (32,)),
                RawTensor("blk.0.post_ffw_norm.weight", (32,)),
            ]
        assert check(_write(target, raw)).architecture == name

    def test_mixture_of_experts(self, raw: RawGguf, target: Path) -> None:
        raw.put("llama.expert_count", u32(4))
        raw.put("llama.expert_used_count", u32(2))
        with pytest.raises(CorruptFile, match="ffn_gate_inp"):
            check(_write(target, raw))
        raw.tensors = [t for t in raw.tensors if not str(t.name).startswith("blk.0.ffn_")]
        raw.tensors += [
            RawTensor("blk.0.ffn_norm.weight", (32,)),
            RawTensor("blk.0.ffn_gate_inp.weight", (32, 4)),
            RawTensor("blk.0.ffn_gate_exps.weight", (32, 64, 4)),
            RawTensor("blk.0.ffn_up_exps.weight", (32, 64, 4)),
            RawTensor("blk.0.ffn_down_exps.weight", (64, 32, 4)),
        ]
        check(_write(target, raw))


class TestConveniences:
    """Facts that other modules read from a checked file."""

    def test_of_a_tiny_model(self, tmp_path: Path) -> None:
        path = gguf_builder.tiny_llama(tmp_path / "tiny.gguf", dtype="f16", context=256)
        file = check(path)
        assert file.architecture == "llama"
        assert file.file_type_name == "F16"
        assert file.context_length == 256
        assert file.chat_template == gguf_builder.TEMPLATE
        assert file.value("general.name") == "tiny"
        assert file.value("no.such.key", 5) == 5
        matrices = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
        assert file.parameter_count == 2 * 270 * 64 + matrices + 5 * 64

    def test_no_chat_template_is_none(self, tmp_path: Path) -> None:
        file = check(gguf_builder.tiny_llama(tmp_path / "tiny.gguf", template=None))
        assert file.chat_template is None

    def test_file_type_without_a_key_is_the_commonest(self, raw: RawGguf, target: Path) -> None:
        raw.tensor("token_embd.weight").type = TensorType.F16
        assert check(_write(target, raw)).file_type_name == "F32"

    def test_file_type_of_a_mix(self, raw: RawGguf, target: Path) -> None:
        raw.put("general.file_type", u32(15))
        assert check(_write(target, raw)).file_type_name == "Q4_K_M"

    @pytest.mark.parametrize(
        ("type_k", "type_v", "expected"),
        [
            ("f16", "f16", 2 * 2 * 64 * 2 * 2),
            ("f32", "f32", 2 * 2 * 64 * 4 * 2),
            ("q8_0", "q8_0", 2 * 2 * (64 // 32 * 34) * 2),
            ("q8_0", "q4_0", 2 * 2 * 2 * (34 + 18)),
        ],
    )
    def test_kv_bytes_per_token(
        self, type_k: str, type_v: str, expected: int, tmp_path: Path
    ) -> None:
        path = gguf_builder.tiny_llama(tmp_path / "tiny.gguf", hidden=256, heads=4, kv_heads=2)
        assert check(path).kv_bytes_per_token(type_k, type_v) == expected

    def test_kv_type_that_heads_do_not_fit(self, raw: RawGguf, target: Path) -> None:
        with pytest.raises(UnsupportedModel, match="multiple of 32"):
            check(_write(target, raw)).kv_bytes_per_token("q8_0", "q8_0")

    def test_layers_without_attention_keep_no_kv(self, raw: RawGguf, target: Path) -> None:
        _as_architecture(raw, "hybrid")
        raw.put("hybrid.block_count", u32(3))
        raw.put("hybrid.attention.head_count", i32s([0, 2, 0]))
        raw.put("hybrid.attention.head_count_kv", i32s([0, 1, 0]))
        raw.put("hybrid.feed_forward_length", u32(64))
        assert check(_write(target, raw)).kv_bytes_per_token() == 16 * 2 * 2


class TestShards:
    """A split model is complete, in order and next to its first part."""

    @staticmethod
    def _split(folder: Path, *, index_of_second: bytes = u16(1), total: int = 12) -> Path:
        first, second = small_llama(), RawGguf()
        second.tensors, first.tensors = first.tensors[8:], first.tensors[:8]
        for raw, index in ((first, u16(0)), (second, index_of_second)):
            raw.put("split.no", index)
            raw.put("split.count", u16(2))
            raw.put("split.tensors.count", i32(total))
        _write(folder / "m-00002-of-00002.gguf", second)
        return _write(folder / "m-00001-of-00002.gguf", first)

    def test_whole_model_is_accepted(self, tmp_path: Path) -> None:
        file = check(self._split(tmp_path))
        assert [shard.path.name for shard in file.shards] == ["m-00002-of-00002.gguf"]
        whole = read_header(_write(tmp_path / "whole.gguf", small_llama()))
        assert file.parameter_count == whole.parameter_count

    def test_missing_shard_is_named(self, tmp_path: Path) -> None:
        first = self._split(tmp_path)
        (tmp_path / "m-00002-of-00002.gguf").unlink()
        with pytest.raises(CorruptFile, match=r"m-00002-of-00002\.gguf is missing"):
            check(first)

    def test_damaged_shard_is_named(self, tmp_path: Path) -> None:
        first = self._split(tmp_path)
        second = tmp_path / "m-00002-of-00002.gguf"
        second.write_bytes(second.read_bytes()[:200])
        with pytest.raises(CorruptFile) as caught:
            check(first)
        assert caught.value.data["path"] == str(second)

    def test_second_shard_alone_points_to_the_first(self, tmp_path: Path) -> None:
        self._split(tmp_path)
        with pytest.raises(UnsupportedModel, match="00001-of-00002"):
            check(tmp_path / "m-00002-of-00002.gguf")

    def test_renamed_first_shard(self, tmp_path: Path) -> None:
        renamed = shutil.move(self._split(tmp_path), tmp_path / "model.gguf")
        with pytest.raises(CorruptFile, match="00001-of-00002"):
            check(renamed)

    def test_swapped_shard(self, tmp_path: Path) -> None:
        first = self._split(tmp_path, index_of_second=u16(2))
        with pytest.raises(CorruptFile, match=r"split\.no.*expected 1"):
            check(first)

    def test_shard_number_of_a_type_that_llama_cpp_asserts_on(self, tmp_path: Path) -> None:
        first = self._split(tmp_path, index_of_second=typed(4, struct.pack("<I", 1)))
        with pytest.raises(CorruptFile, match=r"split\.no.*U16"):
            check(first)

    def test_tensors_that_no_shard_holds(self, tmp_path: Path) -> None:
        first = self._split(tmp_path, total=13)
        with pytest.raises(CorruptFile, match=r"13 tensors, but the parts hold 12"):
            check(first)

    def test_same_shard_twice(self, tmp_path: Path) -> None:
        first = self._split(tmp_path)
        second = small_llama()
        second.put("split.no", u16(1))
        _write(tmp_path / "m-00002-of-00002.gguf", second)
        with pytest.raises(CorruptFile, match="is in two parts"):
            check(first)


def _many_heads(raw: RawGguf, name: str, **values: int) -> None:
    _as_architecture(raw, name)
    for key, value in values.items():
        raw.put(f"{name}.{key.replace('__', '.')}", u32(value))


class TestAssertions:
    """Conditions that llama.cpp asserts for single architectures are refused by name before
    loading.
    """

    @pytest.mark.parametrize(
        ("name", "values", "field"),
        [
            ("smallthinker", {}, "expert_count"),
            ("llada-moe", {}, "expert_count"),
            ("exaone", {"rope__dimension_count": 8}, "rope.dimension_count"),
            ("exaone", {"rope__dimension_count": 32}, "rope.dimension_count"),
            ("paddleocr", {}, "rope.dimension_sections"),
            ("qwen3vl", {"rope__dimension_sections": 0}, "rope.dimension_sections"),
            ("internlm2", {"attention__value_length": 8}, "attention.value_length"),
            (
                "exaone4",
                {"attention__key_length": 8, "attention__key_length_swa": 16}
                | {"attention__sliding_window": 8},
                "attention.value_length",
            ),
            (
                "cohere2",
                {"attention__sliding_window": 8, "attention__key_length_swa": 8},
                "attention.value_length_swa",
            ),
            ("bert", {"attention__value_length": 8}, "attention.value_length"),
            ("deepseek2", {"attention__key_length_mla": 16}, "rope.dimension_count"),
            ("nanbeige", {"num_loops": 0}, "num_loops"),
            ("minimax-m3", {"attention__indexer__block_size": 0}, "indexer.block_size"),
            ("jamba", {"ssm__inner_size": 63}, "ssm.inner_size"),
            ("gemma-embedding", {"dense_2_feat_in": 33}, "dense_2_feat_in"),
            ("jina-bert-v2", {"feed_forward_length": 60}, "ffn_up.weight"),
            (
                "hrm_text",
                {"hrm__layers_per_stack": 1, "hrm__h_cycles": 1, "hrm__l_cycles": 1},
                "block_count",
            ),
        ],
    )
    def test_is_refused(
        self, name: str, values: dict[str, int], field: str, raw: RawGguf, target: Path
    ) -> None:
        _many_heads(raw, name, **values)
        with pytest.raises(CorruptFile) as caught:
            check(_write(target, raw))
        assert field in caught.value.data["field"]

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("exaone", {}),
            ("gptneox", {"rope__dimension_count": 8}),
            ("paddleocr", {"rope__dimension_sections": 4}),
            ("deepseek2", {"attention__key_length_mla": 32}),
            ("jamba", {"ssm__inner_size": 64}),
            ("gemma-embedding", {"dense_2_feat_in": 32, "dense_3_feat_out": 0}),
            ("jina-bert-v2", {"feed_forward_length": 32}),
            ("laguna", {"attention__sliding_window": 8, "rope__dimension_count_swa": 8}),
            ("olmo2", {"attention__sliding_window": 8}),
        ],
    )
    def test_what_llama_cpp_takes_passes(
        self, name: str, values: dict[str, int], raw: RawGguf, target: Path
    ) -> None:
        _many_heads(raw, name, **values)
        assert check(_write(target, raw)).architecture == name

    def test_a_negative_epsilon_is_refused(self, raw: RawGguf, target: Path) -> None:
        _as_architecture(raw, "llama-embed")
        raw.put("llama-embed.attention.layer_norm_rms_epsilon", f32(-1.0))
        with pytest.raises(CorruptFile, match="epsilon"):
            check(_write(target, raw))

    def test_an_audio_decoder_is_no_language_model(self, raw: RawGguf, target: Path) -> None:
        _as_architecture(raw, "wavtokenizer-dec")
        with pytest.raises(UnsupportedModel, match="audio"):
            check(_write(target, raw))

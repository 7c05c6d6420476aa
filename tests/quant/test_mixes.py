"""Which tensor gets which type in a mix, compared with llama.cpp's own quantizer."""

from __future__ import annotations

import itertools

import pytest

from hearth.quant.gguf.errors import BadRecipe, CannotQuantize
from hearth.quant.gguf.file import TensorInfo
from hearth.quant.gguf.mixes import PLAIN, mixes, read_recipe
from hearth.quant.gguf.quantize_types import ModelFacts, choose_types, may_change, ordered
from hearth.quant.gguf.types import TensorType
from llama_quantizer import Model, llama_types

Shapes = list[tuple[str, tuple[int, ...]]]

_FUSED = ("attn_qkv", "attn_kv_b")


def layer_shapes(
    layer: int, hidden: int, ffn: int, experts: int, *, fused: bool, more: tuple[str, ...]
) -> Shapes:
    block = f"blk.{layer}."
    narrow = hidden // 2
    attention = (
        [(f"{name}.weight", hidden, hidden) for name in _FUSED]
        if fused
        else [("attn_q.weight", hidden, hidden)]
        + [(f"attn_{name}.weight", hidden, narrow) for name in "kv"]
    )
    rows = [*attention, ("attn_output.weight", hidden, hidden)]
    shapes: Shapes = [(block + name, (i, o)) for name, i, o in rows]
    shapes += [(f"{block}{name}.weight", (hidden,)) for name in ("attn_norm", "ffn_norm")]
    shapes += [(block + name, (hidden, 64)) for name in more]
    matrices = [("ffn_gate", hidden, ffn), ("ffn_up", hidden, ffn), ("ffn_down", ffn, hidden)]
    if experts:
        shapes.append((f"{block}ffn_gate_inp.weight", (hidden, experts)))
        shapes += [(f"{block}{name}_exps.weight", (i, o, experts)) for name, i, o in matrices]
    else:
        shapes += [(f"{block}{name}.weight", (i, o)) for name, i, o in matrices]
    return shapes


def model(
    architecture: str,
    layers: int,
    *,
    hidden: int = 512,
    ffn: int = 1024,
    heads: int = 8,
    heads_kv: int = 2,
    experts: int = 0,
    tied: bool = False,
    fused: bool = False,
    more: tuple[str, ...] = (),
) -> Model:
    shapes: Shapes = [("token_embd.weight", (hidden, 1000)), ("output_norm.weight", (hidden,))]
    if not tied:
        shapes.append(("output.weight", (hidden, 1000)))
    for layer in range(layers):
        shapes += layer_shapes(layer, hidden, ffn, experts, fused=fused, more=more)
    named = {shape[0]: shape for shape in shapes}
    order = [tensor.name for tensor in ordered([tensor_info(*shape) for shape in shapes])]
    return Model(
        architecture, layers, heads, heads_kv, experts, tuple(named[name] for name in order)
    )


def tensor_info(name: str, shape: tuple[int, ...]) -> TensorInfo:
    return TensorInfo(name, shape, TensorType.F16, 0, 0)


SMALL_TABLES = (
    *(
        "ssm_conv1d.weight",
        "shortconv.conv.weight",
        "time_mix_w1.weight",
        "time_mix_decay_w2.weight",
    ),
    *(
        "time_mix_lerp_fused.weight",
        "altup_proj.weight",
        "laurel_l.weight",
        "indexer.k_proj.weight",
    ),
    *("attn_rel_b.weight", "attn_q_a.weight", "attn_q_b.weight", "attn_k_b.weight", "hc_fn.weight"),
    *("ssm_in.weight", "attn_v_b.weight", "nextn.eh_proj.weight", "attn_q.bias", "ffn_up_b.scale"),
    *("ffn_up_shexp.weight", "ffn_gate_shexp.weight", "ffn_down_shexp.weight", "conv.patch_embd.x"),
    *("indexer.proj.weight", "attn_kv_a_mqa.weight", "ssm_f_a.weight", "ffn_gate_tid2eid.weight"),
)
MODELS = {
    "8B": model("llama", 32, heads=32, heads_kv=8),
    "7B": model("llama", 32, heads=32, heads_kv=32),
    "70B": model("llama", 80, heads=64, heads_kv=8),
    "odd layers": model("qwen3", 13, heads=14, heads_kv=2),
    "tied": model("gemma3", 26, heads=4, heads_kv=1, tied=True),
    "fused": model("phi3", 24, heads=32, heads_kv=32, fused=True),
    "falcon": model("falcon", 32, heads=71, heads_kv=1, fused=True),
    "8 experts": model("llama", 32, heads=32, heads_kv=8, experts=8),
    "128 experts": model("qwen3moe", 48, heads=32, heads_kv=4, experts=128),
    "bailing": model("bailingmoe3", 20, experts=16, more=("attn_k_b.weight",)),
    "short rows": model("llama", 16, hidden=480, ffn=1056, heads=15, heads_kv=5),
    "odd rows": model("llama", 16, hidden=500, ffn=1000, heads=10, heads_kv=10),
    "odd rows, tied": model("qwen2", 8, hidden=896, ffn=4864, heads=14, heads_kv=2, tied=True),
    "small tables": model("rwkv7", 8, more=SMALL_TABLES),
    "glm5": model("glm5-next", 12, experts=32, more=SMALL_TABLES),
}


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, str], list[TensorType | None]]:
    """llama.cpp's choices, by model and mix; None for tensors that it keeps."""
    blocks = [mix for mix in mixes() if mix.name != "Q1_0"]  # has no fallback: see below
    answers = llama_types(list(MODELS.values()), [mix.number for mix in blocks])
    found: dict[tuple[str, str], list[TensorType | None]] = {}
    for name, (allowed, by_mix) in zip(MODELS, answers, strict=True):
        for mix, numbers in zip(blocks, by_mix, strict=True):
            types = iter(numbers)
            found[name, mix.name] = [TensorType(next(types)) if may else None for may in allowed]
    return found


def facts_of(described: Model) -> ModelFacts:
    large = described.architecture == "llama" and described.layers == 80
    groups = described.heads // described.heads_kv
    return ModelFacts(described.architecture, described.layers, described.experts, groups, large)


@pytest.mark.parametrize("name", MODELS)
def test_every_mix_gives_what_llama_cpp_gives(
    name: str, expected: dict[tuple[str, str], list[TensorType | None]]
) -> None:
    described = MODELS[name]
    tensors = [tensor_info(*tensor) for tensor in described.tensors]
    for mix in mixes():
        if (name, mix.name) not in expected:
            continue
        chosen = choose_types(
            tensors, facts_of(described), read_recipe(mix.name), with_matrix=False
        )
        for tensor, choice, theirs in zip(tensors, chosen, expected[name, mix.name], strict=True):
            kept = TensorType.F16 if theirs is None else theirs
            assert choice.type is kept, f"{mix.name}: {tensor.name} {tensor.shape}"


def test_the_mixes_differ_where_it_matters(
    expected: dict[tuple[str, str], list[TensorType | None]],
) -> None:
    used = {kind for types in expected.values() for kind in types if kind is not None}
    assert {TensorType.Q6_K, TensorType.IQ4_NL, TensorType.Q5_1, TensorType.MXFP4} <= used
    pairs = itertools.combinations(("Q4_K_S", "Q4_K_M", "Q3_K_S", "Q3_K_M", "Q3_K_L"), 2)
    assert all(expected["8B", one] != expected["8B", other] for one, other in pairs)


def test_a_type_without_a_fallback_is_refused_where_it_does_not_fit() -> None:
    described = MODELS["short rows"]
    tensors = [tensor_info(*tensor) for tensor in described.tensors]
    with pytest.raises(CannotQuantize, match=r"480 weights.*128") as caught:
        choose_types(tensors, facts_of(described), read_recipe("Q1_0"), with_matrix=False)
    assert caught.value.data["tensor"].endswith(".weight")


@pytest.mark.parametrize("name", [mix.name for mix in mixes()])
def test_a_mix_is_found_however_it_is_typed(name: str) -> None:
    for typed in (name, name.lower(), name.replace("_", ""), name.replace("_", "-")):
        assert read_recipe(typed).mix.name == name


def test_plain_mixes_give_one_type() -> None:
    tensors = [tensor_info(*tensor) for tensor in MODELS["8B"].tensors]
    for mix in mixes():
        if mix.base in PLAIN:
            chosen = choose_types(
                tensors, facts_of(MODELS["8B"]), read_recipe(mix.name), with_matrix=False
            )
            changed = [
                choice.type
                for tensor, choice in zip(tensors, chosen, strict=True)
                if may_change(tensor, "llama")
            ]
            assert set(changed) == {mix.base}


def test_the_first_pattern_that_fits_wins() -> None:
    recipe = read_recipe("Q4_K_M", [r"attn_v=q8_0", r"blk\.0\.=F16", "output=Q5_K"])
    tensors = [tensor_info(*tensor) for tensor in MODELS["8B"].tensors]
    chosen = {
        tensor.name: choice.type
        for tensor, choice in zip(
            tensors,
            choose_types(tensors, facts_of(MODELS["8B"]), recipe, with_matrix=False),
            strict=True,
        )
    }
    assert chosen["blk.0.attn_v.weight"] is TensorType.Q8_0
    assert chosen["blk.0.ffn_down.weight"] is TensorType.F16
    assert chosen["output.weight"] is TensorType.Q5_K
    assert chosen["blk.1.attn_output.weight"] is TensorType.Q5_K
    assert chosen["blk.1.ffn_down.weight"] is TensorType.Q6_K
    assert chosen["blk.0.attn_norm.weight"] is TensorType.F16, "a norm is never changed"
    assert str(recipe.overrides[0]) == "attn_v=Q8_0"


@pytest.mark.parametrize(
    ("name", "overrides", "said"),
    [
        ("Q7_K", [], "Q4_K_M"),
        ("", [], "no type"),
        ("Q4_K_M", ["attn_v"], "PATTERN=TYPE"),
        ("Q4_K_M", ["=Q8_0"], "PATTERN=TYPE"),
        ("Q4_K_M", ["(=Q8_0"], "regular expression"),
        ("Q4_K_M", ["attn_v=I32"], "I32"),
    ],
)
def test_what_is_no_recipe_is_refused(name: str, overrides: list[str], said: str) -> None:
    with pytest.raises(BadRecipe) as caught:
        read_recipe(name, overrides)
    assert said in str(caught.value)

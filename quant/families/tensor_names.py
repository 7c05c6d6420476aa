"""The tensor names that families share: which stored tensors make up which parameter."""

from __future__ import annotations

from hearth.quant.families.config import ModelConfig
from hearth.quant.families.source import Choice, Part, Source, joined, one
from hearth.quant.hf_names import EMBEDDING, HEAD


def prefixes(layer: int) -> tuple[str, str, str]:
    """The prefixes of a layer's names in safetensors, in GGUF and in the decoder."""
    return f"model.layers.{layer}.", f"blk.{layer}.", f"layers.{layer}."


def outer_names(config: ModelConfig) -> dict[str, Source]:
    """The parameters outside of the layers. A tied matrix may be stored as embedding, as output or
    as both.
    """
    embedding = Source(hf=one(EMBEDDING), gguf=one("token_embd.weight"))
    output = Source(hf=one(HEAD), gguf=one("output.weight"))
    norm = Source(hf=one("model.norm.weight"), gguf=one("output_norm.weight"))
    if config.tied:
        either = Source(hf=embedding.hf + output.hf, gguf=embedding.gguf + output.gguf)
        return {"embedding.weight": either, "norm.weight": norm}
    return {"embedding.weight": embedding, "norm.weight": norm, "output.weight": output}


def attention_names(
    config: ModelConfig, layer: int, *, interleaved: bool = False
) -> dict[str, Source]:
    """The matrices of attention, and the norm before it.

    Args:
        interleaved: GGUF's rows of queries and keys are interleaved (see `Part.heads`).
    """
    hf, gguf, ours = prefixes(layer)
    names: dict[str, Source] = {
        f"{ours}attention_norm.weight": Source(
            hf=one(f"{hf}input_layernorm.weight"), gguf=one(f"{gguf}attn_norm.weight")
        )
    }
    for kind in _kinds(config.qkv_bias):
        projections = [f"{hf}self_attn.{name}_proj.{kind}" for name in "qkv"]
        names[f"{ours}qkv.{kind}"] = Source(
            hf=joined(*projections), gguf=_gguf_qkv(config, gguf, kind, interleaved)
        )
    for kind in _kinds(config.out_bias):
        names[f"{ours}out.{kind}"] = Source(
            hf=one(f"{hf}self_attn.o_proj.{kind}"), gguf=one(f"{gguf}attn_output.{kind}")
        )
    if config.head_norms:
        for name, short in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
            names[f"{ours}{name}.weight"] = Source(
                hf=one(f"{hf}self_attn.{short}.weight"), gguf=one(f"{gguf}attn_{short}.weight")
            )
    return names


def feed_forward_norm_names(layer: int, *, gguf: str = "ffn_norm") -> dict[str, Source]:
    """The norm before the feed-forward; `gguf` is its name in GGUF."""
    hf, block, ours = prefixes(layer)
    source = Source(
        hf=one(f"{hf}post_attention_layernorm.weight"), gguf=one(f"{block}{gguf}.weight")
    )
    return {f"{ours}feed_forward_norm.weight": source}


def feed_forward_names(layer: int) -> dict[str, Source]:
    """The matrices of a feed-forward without experts."""
    hf, gguf, ours = prefixes(layer)
    return {
        f"{ours}gate_up.weight": Source(
            hf=joined(f"{hf}mlp.gate_proj.weight", f"{hf}mlp.up_proj.weight"),
            gguf=joined(f"{gguf}ffn_gate.weight", f"{gguf}ffn_up.weight"),
        ),
        f"{ours}down.weight": Source(
            hf=one(f"{hf}mlp.down_proj.weight"), gguf=one(f"{gguf}ffn_down.weight")
        ),
    }


def expert_names(
    config: ModelConfig, layer: int, block: str, gate: str, up: str, down: str
) -> dict[str, Source]:
    """The router and the experts, stored one by one or stacked.

    Args:
        block: the name of the feed-forward in safetensors files.
        gate, up, down: the names of an expert's matrices in safetensors files.
    """
    if config.experts is None:
        raise ValueError("the model has no experts")
    hf, gguf, ours = prefixes(layer)
    hf = f"{hf}{block}."

    def each(matrix: str, count: int) -> Part:
        return Part(tuple(f"{hf}experts.{expert}.{matrix}.weight" for expert in range(count)))

    count = config.experts.count
    return {
        f"{ours}router.weight": Source(
            hf=one(f"{hf}gate.weight"), gguf=one(f"{gguf}ffn_gate_inp.weight")
        ),
        f"{ours}experts.gate_up.weight": Source(
            hf=((each(gate, count), each(up, count)), *one(f"{hf}experts.gate_up_proj")),
            gguf=joined(f"{gguf}ffn_gate_exps.weight", f"{gguf}ffn_up_exps.weight"),
            axis=1,
        ),
        f"{ours}experts.down.weight": Source(
            hf=((each(down, count),), *one(f"{hf}experts.down_proj")),
            gguf=one(f"{gguf}ffn_down_exps.weight"),
            axis=1,
        ),
    }


def _gguf_qkv(config: ModelConfig, block: str, kind: str, interleaved: bool) -> tuple[Choice, ...]:
    """Queries, keys and values as separate tensors, or as one tensor."""

    def part(letters: str, heads: int) -> Part:
        name = f"{block}attn_{letters}.{kind}"
        return (
            Part((name,), heads=heads, head_dim=config.head_dim) if interleaved else Part((name,))
        )

    queries, keys = config.heads, config.kv_heads
    apart: Choice = (part("q", queries), part("k", keys), Part((f"{block}attn_v.{kind}",)))
    return (apart, (part("qkv", queries + keys),))


def _kinds(bias: bool) -> tuple[str, ...]:
    return ("weight", "bias") if bias else ("weight",)

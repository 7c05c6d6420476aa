"""GGUF models that generate scripted texts: llama.cpp runs them like any other model.

Embeddings are one-hot and both halves of the only layer add nothing, so that the next token depends
on the current token alone, with a probability that rounds to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np

from gguf_builder import byte_alphabet, save

END = "<|end|>"
_FFN = 32
_MERGED = "\u0120\u0120\u0120"
"""The result of the one merge that a vocabulary must have: three spaces, which no script contains.
"""


def scripted_model(
    path: Path,
    scripts: Mapping[str, str],
    template: str,
    *,
    specials: Sequence[str] = (),
    context: int = 1024,
) -> Path:
    """Writes a model and returns its path.

    Args:
        path: the file to write.
        scripts: by control token, the text that the model generates after it, followed by the end
            token. The text is cut so that token boundaries lie within words, markers and
            characters.
        template: chat template; its prompts end in a key of `scripts`.
        specials: further control tokens; the first occurrence of each in a script is one token.

    Raises:
        ValueError: a script cannot be cut into tokens that are all different.
    """
    controls = [*scripts, *(text for text in specials if text not in scripts), END]
    said: list[bytes] = []
    chains = {start: _cut(text, specials, said) for start, text in scripts.items()}
    pieces = [piece for piece in said if piece.decode(errors="replace") not in specials]
    letters = byte_alphabet()
    normal = [*letters, *("".join(letters[byte] for byte in piece) for piece in pieces), _MERGED]
    tokens = [*normal, *controls]
    types = [gguf.TokenType.NORMAL] * len(normal) + [gguf.TokenType.CONTROL] * len(controls)
    ids = {piece: 256 + index for index, piece in enumerate(pieces)}
    ids |= {text.encode(): len(normal) + index for index, text in enumerate(controls)}
    hidden = -(-len(tokens) // 32) * 32
    output = np.zeros((len(tokens), hidden), dtype=np.float32)
    for start, script in chains.items():
        chain = [ids[piece] for piece in (start.encode(), *script, END.encode())]
        output[chain[1:], chain[:-1]] = 2.0

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(path.stem)
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_FFN)
    writer.add_head_count(hidden // 32)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(32)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(int(gguf.LlamaFileType.ALL_F32))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_vocab_size(len(tokens))
    writer.add_token_list(tokens)
    writer.add_token_types([int(kind) for kind in types])
    writer.add_token_merges([f"{_MERGED[0]} {_MERGED[1:]}"])
    writer.add_eos_token_id(ids[END.encode()])
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)
    for name, tensor in _tensors(hidden, len(tokens), output).items():
        writer.add_tensor(name, tensor)
    save(writer)
    return path


def _tensors(hidden: int, vocabulary: int, output: np.ndarray) -> dict[str, np.ndarray]:
    """The tensors; matrices are [out, in]."""
    shapes = {
        "attn_q": (hidden, hidden),
        "attn_k": (32, hidden),
        "attn_v": (32, hidden),
        "attn_output": (hidden, hidden),
        "ffn_gate": (_FFN, hidden),
        "ffn_up": (_FFN, hidden),
        "ffn_down": (hidden, _FFN),
    }
    layer = {
        f"blk.0.{name}.weight": np.zeros(shape, dtype=np.float32) for name, shape in shapes.items()
    }
    ones = np.ones(hidden, dtype=np.float32)
    return {
        "token_embd.weight": np.eye(vocabulary, hidden, dtype=np.float32),
        "output_norm.weight": ones,
        "output.weight": output,
        "blk.0.attn_norm.weight": ones,
        "blk.0.ffn_norm.weight": ones,
        **layer,
    }


def _cut(text: str, specials: Sequence[str], said: list[bytes]) -> list[bytes]:
    """`text` in tokens of two bytes or more that are not in `said`; the new tokens are added to
    `said`. Thus the token after each token is always the same.
    """
    tokens: list[bytes] = []
    for part in _split(text, [one for one in specials if one.encode() not in said]):
        data, at = part.encode(), 0
        while at < len(data):
            size = len(data) if part in specials else 2 + len(said) * 7 % 4
            while data[at : at + size] in said or len(data) - at - size == 1:
                size += 1
                if at + size > len(data):
                    raise ValueError(f"{data[at:]!r} cannot be said again")
            tokens.append(data[at : at + size])
            said.append(tokens[-1])
            at += size
    return tokens


def _split(text: str, specials: Sequence[str]) -> list[str]:
    """`text` split around the first occurrence of each of `specials`."""
    for special in specials:
        before, found, after = text.partition(special)
        if found:
            others = [one for one in specials if one != special]
            return [*_split(before, others), special, *_split(after, others)]
    return [text]

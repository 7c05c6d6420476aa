"""GGUF models that say what they are told to: llama.cpp runs them as it runs any other.

Embeddings are one-hot and both halves of the only layer add nothing, so that what follows a token
depends on that token alone, with a probability that rounds to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np

from gguf_builder import byte_alphabet

END = "<|end|>"
_FFN = 32
_MERGED = "\u0120\u0120\u0120"
"""What the one merge makes that a vocabulary must have: three spaces, which no script says."""


def scripted_model(
    path: Path,
    scripts: Mapping[str, Sequence[bytes]],
    template: str,
    *,
    specials: Sequence[str] = (),
    context: int = 1024,
) -> Path:
    """Writes a model and returns its path.

    Args:
        path: the file to write.
        scripts: after which control token the model says which tokens, and then the end. A token
            is said after the same one always, so all are different; one that is among `specials`
            is that control token, all others are new.
        template: chat template; its prompts end in a key of `scripts`.
        specials: further control tokens.

    Raises:
        ValueError: a token stands in the scripts twice, or is a single byte.
    """
    controls = [*scripts, *(text for text in specials if text not in scripts), END]
    said = [piece for script in scripts.values() for piece in script]
    pieces = [piece for piece in said if piece.decode(errors="replace") not in controls]
    if len(set(said)) < len(said) or any(len(piece) == 1 for piece in pieces):
        raise ValueError("every token of a script has two bytes or more, and comes once")
    letters = byte_alphabet()
    normal = [*letters, *("".join(letters[byte] for byte in piece) for piece in pieces), _MERGED]
    tokens = [*normal, *controls]
    types = [gguf.TokenType.NORMAL] * len(normal) + [gguf.TokenType.CONTROL] * len(controls)
    ids = {piece: 256 + index for index, piece in enumerate(pieces)}
    ids |= {text.encode(): len(normal) + index for index, text in enumerate(controls)}
    hidden = -(-len(tokens) // 32) * 32
    output = np.zeros((len(tokens), hidden), dtype=np.float32)
    for start, script in scripts.items():
        chain = [ids[text] for text in (start.encode(), *script, END.encode())]
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
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(hidden: int, vocabulary: int, output: np.ndarray) -> dict[str, np.ndarray]:
    """[out, in] for matrices."""
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

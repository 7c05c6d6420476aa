"""Memory per sequence of a recurrent or hybrid model, for any length, from a file's header."""

from __future__ import annotations

from hearth.backends.llamacpp.facts import GgufFacts, integer

_F32_BYTES = 4
"""llama.cpp stores recurrent states in float32, for any type of keys and values."""
_FIRST_CONV = 4
"""Default width of the convolution in Kimi files."""
_RWKV_SHIFTS = 2


def state_bytes(facts: GgufFacts) -> int:
    """Bytes that the recurrent layers hold for each sequence id; 0 for attention alone.

    Every layer counts as recurrent, so a hybrid model holds at most this. The sizes are those of
    `llama_hparams::n_embd_r` and `n_embd_s` (llama-hparams.cpp).
    """
    layers = integer(facts, "block_count")
    return layers * (_convolution_elements(facts) + _state_elements(facts)) * _F32_BYTES


def _convolution_elements(facts: GgufFacts) -> int:
    """Elements of earlier tokens that the next token still sees, in one layer."""
    width = integer(facts, "embedding_length")
    if integer(facts, "wkv.head_size"):
        return integer(facts, "token_shift_count", _RWKV_SHIFTS) * width
    if cached := integer(facts, "shortconv.l_cache"):
        return width * (cached - 1)
    if head := integer(facts, "kda.head_dim"):
        reach = integer(facts, "ssm.conv_kernel", _FIRST_CONV) - 1
        return 3 * reach * head * integer(facts, "attention.head_count")
    reach = max(0, integer(facts, "ssm.conv_kernel") - 1)
    groups = 2 * integer(facts, "ssm.group_count") * integer(facts, "ssm.state_size")
    return reach * (integer(facts, "ssm.inner_size") + groups)


def _state_elements(facts: GgufFacts) -> int:
    """Elements of the state of one layer."""
    if head := integer(facts, "wkv.head_size"):
        return integer(facts, "embedding_length") * head
    if head := integer(facts, "kda.head_dim"):
        return head * head * integer(facts, "attention.head_count")
    return integer(facts, "ssm.state_size") * integer(facts, "ssm.inner_size")

"""GGUF files whose structure is broken: counts, lengths, types, alignment, offsets."""

from __future__ import annotations

from gguf_damage import HUGE, QUERY, Malformed, add_key, fields, put, swap_offsets, tensor
from gguf_raw import (
    ARRAY,
    BOOL,
    I32,
    STRING,
    TENSOR_Q8_0,
    boolean,
    i32s,
    listed,
    string,
    text,
    typed,
    u32,
    u64,
)

STRUCTURE = [
    Malformed("magic of another format", fields(magic=b"PK\3\4"), "header magic", "PK"),
    Malformed("Git LFS pointer", fields(magic=b"vers"), "header magic", "LFS"),
    Malformed("older than GGUF", fields(magic=b"tjgg"), "header magic", "older", supported=False),
    Malformed("version 0", fields(version=0), "header version", "expected 2 or 3"),
    Malformed("version 1", fields(version=1), "header version", "version 1", supported=False),
    Malformed(
        "version of the future", fields(version=4), "header version", "Update", supported=False
    ),
    Malformed(
        "big-endian", fields(version=0x03000000), "header version", "big-endian", supported=False
    ),
    Malformed("absurd key count", fields(key_count=HUGE), "header key count", "65,536"),
    Malformed("absurd tensor count", fields(tensor_count=1 << 62), "header tensor count", "65,536"),
    Malformed("one key too many", fields(key_count=65_537), "header key count", "65,537"),
    Malformed("empty key", add_key("", u32(1)), "key 17 of 18 name", "is empty"),
    Malformed("key over 64 KiB", add_key("k" * 65_537, u32(1)), "name length", "65,536"),
    Malformed("key is not UTF-8", add_key(b"\xff\xfe", u32(1)), "name", "not UTF-8"),
    Malformed("key with NUL", add_key(b"general.a\0b", u32(1)), "name", "NUL"),
    Malformed(
        "duplicate key", add_key("llama.block_count", u32(1)), "'llama.block_count'", "twice"
    ),
    Malformed("unknown value type", add_key("x", typed(13, b"\0" * 8)), "key 'x' type", "13"),
    Malformed("boolean of 2", add_key("x", boolean(2)), "key 'x'", "2, not 0 or 1"),
    Malformed(
        "boolean of 7 in an array",
        add_key("x", listed(BOOL, b"\1\7", 2)),
        "key 'x'",
        "7, not 0 or 1",
    ),
    Malformed(
        "string longer than the file",
        put("general.architecture", typed(STRING, b"\xff" * 7 + b"\x0f" + b"llama")),
        "key 'general.architecture'",
        "the file ends",
    ),
    Malformed(
        "string length of 2**64 - 1",
        add_key("x", typed(STRING, b"\xff" * 8)),
        "key 'x'",
        "the file ends",
    ),
    Malformed(
        "array element of an absurd length",
        add_key("x", listed(STRING, b"\xff" * 8 + text("b"), 2)),
        "key 'x'[0] length",
        "left in the file",
    ),
    Malformed(
        "array of more strings than bytes",
        add_key("x", listed(STRING, b"", 1 << 40)),
        "key 'x' count",
        "1,099,511,627,776",
    ),
    Malformed(
        "array whose bytes overflow", add_key("x", listed(I32, b"", 1 << 62)), "key 'x' count"
    ),
    Malformed(
        "array of arrays",
        add_key("x", listed(ARRAY, i32s([1])[4:], 1)),
        "key 'x' element type",
        "arrays of arrays",
    ),
    Malformed(
        "array of an unknown type", add_key("x", listed(99, b"", 0)), "key 'x' element type", "99"
    ),
    Malformed("alignment 0", put("general.alignment", u32(0)), "general.alignment", "0"),
    Malformed("alignment 13", put("general.alignment", u32(13)), "general.alignment", "13"),
    Malformed("alignment 4", put("general.alignment", u32(4)), "general.alignment", "from 8"),
    Malformed(
        "alignment of 2**31", put("general.alignment", u32(1 << 31)), "general.alignment", "65,536"
    ),
    Malformed(
        "alignment of type U64", put("general.alignment", u64(32)), "general.alignment", "U64"
    ),
    Malformed(
        "alignment is a string",
        put("general.alignment", string("32")),
        "general.alignment",
        "STRING",
    ),
    Malformed(
        "alignment other than the layout's",
        put("general.alignment", u32(4096)),
        "offset",
        "not a multiple of 4096",
    ),
    Malformed("empty tensor name", tensor(QUERY, name=""), "tensor 4 of 12 name", "is empty"),
    Malformed("tensor name of 64 bytes", tensor(QUERY, name="n" * 64), "name length", "63"),
    Malformed("tensor name is not UTF-8", tensor(QUERY, name=b"\xc3\x28"), "name", "not UTF-8"),
    Malformed(
        "duplicate tensor", tensor(QUERY, name="output.weight"), "tensor 'output.weight'", "twice"
    ),
    Malformed("no dimensions", tensor(QUERY, dims=()), f"tensor '{QUERY}' dimension count", "0"),
    Malformed(
        "five dimensions", tensor(QUERY, dims=(1,) * 5), f"tensor '{QUERY}' dimension count", "5"
    ),
    Malformed(
        "absurd dimension count", tensor(QUERY, dim_count=1 << 31), "dimension count", "2147483648"
    ),
    Malformed("dimension of 0", tensor(QUERY, dims=(32, 0)), f"tensor '{QUERY}' shape", "0"),
    Malformed(
        "negative dimension", tensor(QUERY, dims=(32, HUGE)), f"tensor '{QUERY}' shape", "2**63"
    ),
    Malformed(
        "product over 2**63",
        tensor(QUERY, dims=(1 << 32, 1 << 31)),
        f"tensor '{QUERY}' shape",
        "more than 2**63 - 1 elements",
    ),
    Malformed(
        "product that wraps to a small one",
        tensor(QUERY, dims=((1 << 32) + 1, 1 << 32)),
        f"tensor '{QUERY}' shape",
        "more than",
    ),
    Malformed(
        "bytes over 2**63",
        tensor(QUERY, dims=((1 << 62) + 32, 1)),
        f"tensor '{QUERY}' offset",
        "18,446,744,073,709,551,744",
    ),
    Malformed(
        "row is not whole blocks",
        tensor(QUERY, dims=(33, 32), type=TENSOR_Q8_0),
        f"tensor '{QUERY}' shape",
        "multiple of 32",
    ),
    Malformed(
        "unknown tensor type",
        tensor(QUERY, type=250),
        f"tensor '{QUERY}' type",
        "250",
        supported=False,
    ),
    Malformed(
        "removed tensor type",
        tensor(QUERY, type=4),
        f"tensor '{QUERY}' type",
        "4",
        supported=False,
    ),
    Malformed("offset outside", tensor(QUERY, offset=1 << 40), f"tensor '{QUERY}' offset", "holds"),
    Malformed(
        "offset that wraps", tensor(QUERY, offset=HUGE - 31), f"tensor '{QUERY}' offset", "holds"
    ),
    Malformed(
        "offset unaligned", tensor(QUERY, offset=7), f"tensor '{QUERY}' offset", "multiple of 32"
    ),
    Malformed("offset overlapping", tensor(QUERY, offset=0), "offset", "overlaps"),
    Malformed(
        "tensors out of order", swap_offsets, "tensor 'blk.0.ffn_gate.weight' offset", "expected"
    ),
    Malformed("no tensor data", fields(data_bytes=0), "'token_embd.weight' offset", "holds 0"),
    Malformed("tensor data cut", fields(data_bytes=4096), "offset", "shorter than its header"),
    Malformed(
        "tensor larger than the file",
        tensor("output.weight", dims=(32, 1 << 20)),
        "tensor 'output.weight' offset",
        "holds",
    ),
]
"""Files that `read_header` and the layout check refuse."""

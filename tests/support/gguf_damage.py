"""Ways to damage one thing in a valid GGUF file, and the error that each must give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gguf_raw import RawGguf, small_llama

HUGE = (1 << 64) - 1
QUERY = "blk.0.attn_q.weight"


@dataclass(frozen=True)
class Malformed:
    """`damage` changes a valid file; the error's field must contain `field`, its message `says`."""

    name: str
    damage: Callable[[RawGguf], object]
    field: str
    says: str = ""
    supported: bool = True
    """False: the error is UnsupportedModel instead of CorruptFile."""
    tokenizer: str = "gpt2"

    def build(self) -> bytes:
        raw = small_llama(self.tokenizer)
        self.damage(raw)
        return raw.build()


def fields(**values: object) -> Callable[[RawGguf], object]:
    def damage(raw: RawGguf) -> None:
        for name, value in values.items():
            setattr(raw, name, value)

    return damage


def put(key: str, value: bytes) -> Callable[[RawGguf], object]:
    return lambda raw: raw.put(key, value)


def drop(key: str) -> Callable[[RawGguf], object]:
    return lambda raw: raw.drop(key)


def tensor(name: str, /, **values: object) -> Callable[[RawGguf], object]:
    def damage(raw: RawGguf) -> None:
        tensor = raw.tensor(name)
        for attribute, value in values.items():
            setattr(tensor, attribute, value)

    return damage


def drop_tensor(name: str) -> Callable[[RawGguf], object]:
    return lambda raw: raw.tensors.remove(raw.tensor(name))


def add_key(key: str | bytes, value: bytes) -> Callable[[RawGguf], object]:
    return lambda raw: raw.keys.append((key, value))


def both(
    first: Callable[[RawGguf], object], second: Callable[[RawGguf], object]
) -> Callable[[RawGguf], object]:
    def damage(raw: RawGguf) -> None:
        first(raw)
        second(raw)

    return damage


def swap_offsets(raw: RawGguf) -> None:
    """Swap the offsets of two tensors of equal size."""
    raw.tensor("blk.0.ffn_gate.weight").offset, raw.tensor("blk.0.ffn_up.weight").offset = (
        _offset_of(raw, "blk.0.ffn_up.weight"),
        _offset_of(raw, "blk.0.ffn_gate.weight"),
    )


def _offset_of(raw: RawGguf, name: str) -> int:
    before = raw.tensors[: raw.tensors.index(raw.tensor(name))]
    return len(RawGguf(tensors=before).build()) - len(RawGguf(tensors=before, data_bytes=0).build())

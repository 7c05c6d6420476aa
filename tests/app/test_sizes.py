"""Amounts of memory: what people write is what is meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.app.format import binary_size, format_size, parse_size, size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1048576", 1048576),
        ("512MiB", 512 * 2**20),
        ("512 mib", 512 * 2**20),
        ("2GB", 2 * 10**9),
        ("1.5G", 3 * 2**29),
        ("1.5 GiB", 3 * 2**29),
        ("64kB", 64_000),
        ("64K", 65_536),
        ("3m", 3 * 2**20),
        ("1T", 2**40),
        ("1TB", 10**12),
        ("7B", 7),
        (" 7 ", 7),
        ("0.1KiB", 102),
        ("0.3GB", 300_000_000),
    ],
)
def test_sizes_as_people_write_them(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "G", "-1G", "1e9", "1,5G", "1.G", "2 GB of it", "2XB", "0x10", "\u0663G", "inf"]
)
def test_other_texts_are_no_sizes(text: str) -> None:
    assert parse_size(text) is None


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0"),
        (1023, "1023"),
        (2048, "2KiB"),
        (512 * 2**20, "512MiB"),
        (3 * 2**29, "1536MiB"),
        (2 * 10**9, "2GB"),
        (10**6 + 10**3, "1001kB"),
    ],
)
def test_sizes_are_printed_exactly(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("size_bytes", "decimal", "binary"),
    [
        (999, "999 B", "999 B"),
        (999_940, "999.9 kB", "976.5 KiB"),
        (999_950, "1.0 MB", "976.5 KiB"),
        (999_960_000, "1.0 GB", "953.6 MiB"),
        (2**20 - 1, "1.0 MB", "1.0 MiB"),
        (2**30 - 1, "1.1 GB", "1.0 GiB"),
    ],
)
def test_sizes_just_below_a_unit_are_rounded_up_to_it(
    size_bytes: int, decimal: str, binary: str
) -> None:
    assert (size(size_bytes), binary_size(size_bytes)) == (decimal, binary)


@given(st.integers(0, 2**60))
def test_what_is_printed_is_read_as_the_same(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes

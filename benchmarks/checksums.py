"""Checksums of keys and values compared with reading them: GB/s over 64 MiB, the best of five.

python benchmarks/checksums.py [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import time
import zlib
from collections.abc import Callable
from typing import Final

import xxhash

SIZE: Final = 64 << 20


def print_speed(name: str, work: Callable[[], object]) -> None:
    """Print the GB/s of `work`, which processes `SIZE` bytes."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    print(f"{name:24}{SIZE / min(times) / 1e9:8.2f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="on the disk that is read; by default a temporary one")
    args = parser.parse_args()
    data = os.urandom(1 << 20) * (SIZE >> 20)
    print_speed("xxhash.xxh3_64", lambda: xxhash.xxh3_64_intdigest(data))
    print_speed("zlib.crc32", lambda: zlib.crc32(data))
    print_speed("zlib.adler32", lambda: zlib.adler32(data))
    print_speed("hashlib.blake2b", lambda: hashlib.blake2b(data).digest())
    print_speed("hashlib.sha256", lambda: hashlib.sha256(data).digest())
    with tempfile.NamedTemporaryFile(dir=args.folder, buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())
        buffer = bytearray(SIZE)

        def read(into: bytearray) -> None:
            file.seek(0)
            file.readinto(into)

        def read_cold() -> None:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            read(buffer)

        print_speed("read, warm", lambda: read(buffer))
        print_speed("read, warm, new memory", lambda: read(bytearray(SIZE)))
        print_speed("read, cold", read_cold)


if __name__ == "__main__":
    main()

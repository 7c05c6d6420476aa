"""Reads the headers of compiled libraries: ELF, PE and Mach-O, 64-bit, little-endian."""

from __future__ import annotations

from struct import unpack_from

ELF_MACHINES = {62: "ELF x86-64", 183: "ELF ARM64"}
PE_MACHINES = {0x8664: "PE x86-64"}
MACH_MACHINES = {0x01000007: "Mach-O x86-64", 0x0100000C: "Mach-O ARM64"}


def binary_exports(data: bytes) -> tuple[str, set[str]]:
    """Format and processor of a library, and the functions and data that it exports."""
    if data.startswith(b"\x7fELF\x02\x01"):
        return ELF_MACHINES[unpack_from("<H", data, 18)[0]], _elf_exports(data)
    if data.startswith(b"MZ"):
        header = unpack_from("<I", data, 0x3C)[0]
        assert data[header : header + 4] == b"PE\0\0"
        return PE_MACHINES[unpack_from("<H", data, header + 4)[0]], _pe_exports(data, header)
    magic, processor, _, kind = unpack_from("<4I", data)
    assert (magic, kind) == (0xFEEDFACF, 6), "no dynamic library"
    return MACH_MACHINES[processor], _mach_exports(data)


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


def _elf_exports(data: bytes) -> set[str]:
    """The defined symbols of the section SHT_DYNSYM."""
    (start,), (size, count) = unpack_from("<Q", data, 40), unpack_from("<HH", data, 58)
    sections = [unpack_from("<IIQQQQIIQQ", data, start + index * size) for index in range(count)]
    symbols = next(one for one in sections if one[1] == 11)
    names = sections[symbols[6]][4]
    found = set()
    for place in range(symbols[4], symbols[4] + symbols[5], symbols[9]):
        name, _, _, section = unpack_from("<IBBH", data, place)
        if section:
            found.add(_text(data, names + name))
    return found


def _pe_exports(data: bytes, header: int) -> set[str]:
    """The names in the export directory, the first directory of a PE32+ optional header."""
    (count,), (optional,) = (
        unpack_from("<H", data, header + 6),
        unpack_from("<H", data, header + 20),
    )
    first = header + 24 + optional
    sections = [unpack_from("<4I", data, first + 40 * index + 8) for index in range(count)]

    def place(address: int) -> int:
        for size, start, _, file in sections:
            if start <= address < start + size:
                return int(address - start + file)
        raise ValueError(f"no section holds {address:#x}")

    directory = place(unpack_from("<I", data, header + 24 + 112)[0])
    (names,), (table,) = (
        unpack_from("<I", data, directory + 24),
        unpack_from("<I", data, directory + 32),
    )
    addresses = unpack_from(f"<{names}I", data, place(table))
    return {_text(data, place(address)) for address in addresses}


def _mach_exports(data: bytes) -> set[str]:
    """The external symbols in a section, from the command LC_SYMTAB, without the leading
    underscore; symbols with two underscores are the linker's own.
    """
    (commands,) = unpack_from("<I", data, 16)
    start, found = 32, set()
    for _ in range(commands):
        kind, size = unpack_from("<2I", data, start)
        if kind == 2:
            symbols, count, names, _ = unpack_from("<4I", data, start + 8)
            for place in range(symbols, symbols + 16 * count, 16):
                name, flags = unpack_from("<IB", data, place)
                symbol = _text(data, names + name)
                if flags & 0x0F == 0x0F and not symbol.startswith("__"):
                    found.add(symbol.removeprefix("_"))
        start += size
    return found

"""Session files survive cuts, flips, hostile lengths; other files and versions are refused."""

import os
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples
from support.session_files import chunks, loaded_is_complete, small

from gpusense._records.records import (
    GpuKernel,
)
from gpusense._runtime.errors import SessionError
from gpusense.session import _format as file
from gpusense.session import load
from gpusense.session._writer import Writer


def test_cut_at_every_offset_the_part_before_loads(tmp_path):
    whole = small(tmp_path / "s")
    data = (tmp_path / "s").read_bytes()
    ends = [chunk.offset for chunk in whole[1:]] + [len(data)]
    cut = tmp_path / "cut"
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        if length < 16:
            with pytest.raises(SessionError, match="is empty" if not length else "not a gpusense session"):
                file.Reader(cut)
            continue
        found, damage = chunks(cut)
        padding = 7  # zeros that may be missing after the payload
        expected = sum(end <= length + padding for end in ends)
        assert expected - 1 <= len(found) <= expected
        assert found == whole[: len(found)]
        assert damage or len(found) == expected, length
        assert loaded_is_complete(cut) == (len(found) == len(whole))


def test_every_flipped_bit_costs_one_chunk_at_most(tmp_path):
    whole = small(tmp_path / "s")
    data = (tmp_path / "s").read_bytes()
    flipped = tmp_path / "flipped"
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 1 << (position * 5 % 8)
        flipped.write_bytes(broken)
        found, damage = chunks(flipped)
        assert len(found) >= len(whole) - 1, position
        assert all(chunk in whole for chunk in found), position
        if len(found) < len(whole):
            assert any("offset" in sentence for sentence in damage), position


@examples(80)
@given(st.binary(max_size=300), st.data())
def test_any_bytes_after_the_header_are_survived(tmp_path_factory, noise, data):
    path = tmp_path_factory.mktemp("s") / "s"
    small(path)
    good = path.read_bytes()
    at = data.draw(st.integers(16, len(good)))
    path.write_bytes(good[:at] + noise + good[at:])
    found, _ = chunks(path)
    assert all(chunk.type in file.TYPES for chunk in found)
    load_without_buffers(path)


def load_without_buffers(path):
    from gpusense.session._builder import Builder

    builder = Builder()
    with file.Reader(path) as reader:
        for chunk in reader:
            builder.take(chunk)
    return builder.session()


def forge(path, *headers, tail=b""):
    """A file of hand-made chunks: ``(type, flags, stored, length, payload)``, every checksum right."""
    small(path)
    data = path.read_bytes()[:16]
    for sequence, (kind, flags, stored, length, payload) in enumerate(headers):
        head = file.HEADER.pack(file.MARKER, kind, flags, stored, length, sequence, zlib.crc32(payload))
        data += head + struct.pack("<I", zlib.crc32(head)) + payload + bytes(-len(payload) % 8)
    path.write_bytes(data + tail)


def test_a_huge_declared_length_reads_nothing(tmp_path):
    path = tmp_path / "s"
    forge(path, (file.META, 0, 0xFFFFFFFF, 4, b"{}"))
    assert chunks(path)[0] == []
    assert "cut inside the chunk META at offset 16" in chunks(path)[1][0]
    with open(path, "r+b") as sparse:
        sparse.truncate(100 << 20)
    forge(path, (file.META, 0, 90 << 20, 90 << 20, b""))
    with open(path, "r+b") as sparse:
        sparse.truncate(100 << 20)
    found, damage = chunks(path)
    assert found == []
    assert f"declares {90 << 20} bytes" in damage[0]


def test_a_bomb_is_not_inflated(tmp_path):
    bomb = zlib.compress(bytes(200 << 20), 9)
    forge(tmp_path / "s", (file.META, 1, len(bomb), 10, bomb), (file.META, 0, 2, 2, b"{}"))
    found, damage = chunks(tmp_path / "s")
    assert [chunk.payload for chunk in found] == [b"{}"]
    assert "does not hold the 10 bytes" in damage[0]


def test_what_claims_to_be_compressed_and_is_not(tmp_path):
    forge(tmp_path / "s", (file.META, 1, 4, 9, b"what"), (file.META, 1, 0, 0, b""))
    found, damage = chunks(tmp_path / "s")
    assert [chunk.payload for chunk in found] == [b""]
    assert "offset 16" in damage[0]


def test_unknown_types_are_named_and_skipped(tmp_path):
    forge(tmp_path / "s", (4711, 0, 3, 3, b"new"), (file.META, 0, 2, 2, b"{}"))
    found, damage = chunks(tmp_path / "s")
    assert [chunk.type for chunk in found] == [file.META]
    assert "type 4711 at offset 16 is unknown" in damage[0]


def test_chunks_that_are_gone_are_missed(tmp_path):
    whole = small(tmp_path / "s")
    data = (tmp_path / "s").read_bytes()
    (tmp_path / "s").write_bytes(data[: whole[2].offset] + data[whole[4].offset :])
    found, damage = chunks(tmp_path / "s")
    assert len(found) == len(whole) - 2
    assert damage == [f"chunks 2 to 3 are missing before offset {whole[2].offset}"]


def test_sentences_are_bounded(tmp_path):
    forge(tmp_path / "s", *[(4711, 0, 0, 0, b"")] * 500)
    damage = chunks(tmp_path / "s")[1]
    assert len(damage) == 101
    assert damage[-1] == "400 more faults"


def test_zeros_after_a_crash_of_the_machine(tmp_path):
    small(tmp_path / "s")
    with open(tmp_path / "s", "r+b") as grown:
        grown.truncate(os.path.getsize(tmp_path / "s") + 4096)
    damage = chunks(tmp_path / "s")[1]
    assert len(damage) == 1
    assert "the last 4096 bytes" in damage[0]


def test_rows_that_are_no_records_are_counted(tmp_path):
    writer = Writer(tmp_path / "s")
    writer.json(file.RECORDS, [{"kind": "kernel", "name": "k", "start_ns": 5, "end_ns": 1}, {"kind": "quark"}, 7])
    writer.append(file.RECORDS, b"[1, 2")
    writer.json(file.META, {"start_ns": "soon", "rank": 2})
    writer.json(file.META, [])
    writer.json(file.DEVICES, {"not": "rows"})
    writer.records([GpuKernel("good", 1, 2)])
    writer.close()
    loaded = load(tmp_path / "s")
    assert [kernel.name for kernel in loaded.kernels] == ["good"]
    assert loaded.meta["rank"] == 2
    assert "start_ns" not in loaded.meta
    damage = "\n".join(loaded.meta["damage"])
    assert "3 rows of the chunk at offset 16 were left out; first: GpuKernel: ends 4 ns before" in damage
    assert "not JSON" in damage
    assert "start_ns in the chunk at offset" in damage


def header(major, minor=0):
    head = struct.pack("<8sHH", file.MAGIC, major, minor)
    return head + struct.pack("<I", zlib.crc32(head))


def test_a_version_of_the_future_is_refused_and_a_newer_minor_is_read(tmp_path):
    small(tmp_path / "s")
    data = (tmp_path / "s").read_bytes()[16:]
    (tmp_path / "next").write_bytes(header(2) + data)
    with pytest.raises(SessionError, match=r"session format 2\.0; this gpusense reads up to 1\.x"):
        load(tmp_path / "next")
    (tmp_path / "minor").write_bytes(header(1, 9) + data)
    assert chunks(tmp_path / "minor")[1] == []


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "is empty"), (b"import gpusense\n" * 9, "not a gpusense session"), (b"\x89GPU", "not a")],
)
def test_other_files_are_refused(tmp_path, content, said):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(SessionError, match=said):
        load(tmp_path / "x")


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(SessionError, match="No such file"):
        load(tmp_path / "absent")
    with pytest.raises(SessionError, match="not a regular file"):
        load(tmp_path)
    with pytest.raises(SessionError, match="null"):
        load("a\0b")
    with pytest.raises(SessionError, match="null"):
        Writer("a\0b")
    with pytest.raises(SessionError, match="No such file"):
        Writer(tmp_path / "no" / "such" / "folder")
    with pytest.raises(SessionError, match="not a regular file"):
        Writer(tmp_path)
    with pytest.raises(SessionError, match="not a regular file"):
        Writer(os.devnull)

"""Exports of Nsight Systems as sessions: databases made by NVIDIA's documented schema, older and hostile ones."""

import sqlite3

import pytest

from gpusense import cli, load
from gpusense.report import text

BASE = 1_700_000_000_000_000_000
PROCESS = (1 << 56) | (77 << 24)
MAIN, OTHER = PROCESS | 4711, PROCESS | 4712
GEMM = "void gemm<float>(float *)"
STRINGS = {1: GEMM, 2: "gemm", 3: "cudaLaunchKernel_v7000", 4: "cudaStreamSynchronize_v3020", 5: "forward", 6: "main"}

PLACE = "start end deviceId contextId streamId correlationId globalPid"
KERNEL = "demangledName shortName mangledName registersPerThread gridX gridY gridZ blockX blockY blockZ"

#: Table → columns, rows.
TABLES = {
    "StringIds": ("id value", list(STRINGS.items())),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs utcTime", [(BASE, "x")]),
    "TARGET_INFO_GPU": (
        "id name uuid busLocation totalMemory smCount computeMajor computeMinor isDiscrete",
        [(1, "NVIDIA H100", "GPU-1", "0000:1B:00.0", 80 << 30, 132, 9, 0, 1)],
    ),
    "TARGET_INFO_CUDA_DEVICE": ("gpuId cudaId", [(1, 0)]),
    "TARGET_INFO_SYSTEM_ENV": ("globalVid name value", [(1, "Hostname", "box")]),
    "ANALYSIS_DETAILS": ("startTime stopTime", [(0, 1_000_000)]),
    "ThreadNames": ("nameId priority globalTid", [(6, 0, MAIN)]),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start end eventClass globalTid correlationId nameId",
        [(100, 110, 0, MAIN, 1, 3), (2000, 2010, 0, OTHER, 2, 3), (300_000, 700_000, 0, MAIN, 5, 4)],
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        f"{PLACE} {KERNEL} staticSharedMemory dynamicSharedMemory",
        [
            (5_000, 305_000, 0, 1, 7, 1, PROCESS, 1, 2, None, 32, 8, 2, 1, 128, 1, 1, 16, 1024),
            (305_000, 605_000, 0, 1, 7, 2, PROCESS, None, 2, None, 32, 0, 2, 1, 128, 1, 1, 0, 0),
        ],
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        f"{PLACE} bytes copyKind srcKind dstKind",
        [(1_000, 4_000, 0, 1, 7, 3, PROCESS, 4096, 1, 0, 2), (1_000, 4_000, 0, 1, 7, 3, PROCESS, 4096, 99, 0, 2)],
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (f"{PLACE} value bytes memKind", [(4_000, 4_500, 0, 1, 7, 4, PROCESS, 0, 64, 2)]),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        f"{PLACE} syncType eventId",
        [(300_100, 699_000, 0, 1, 7, 5, PROCESS, 3, 0), (700_000, 800_000, 0, 1, 0xFFFFFFFF, 6, PROCESS, 4, 0)],
    ),
    "NVTX_EVENTS": (
        "start end eventType text textId globalTid endGlobalTid",
        [
            (0, 900_000, 59, "step", None, MAIN, None),
            (50, 200, 59, None, 5, MAIN, None),
            (60, None, 34, "mark", None, MAIN, None),
            (60, 90, 60, "elsewhere", None, MAIN, OTHER),
            (60, None, 59, "open", None, MAIN, None),
        ],
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("start end", [(1, 2)]),
}
TEXTS = {"value", "utcTime", "name", "uuid", "busLocation", "text"}


def export(path, tables=TABLES, typed=True):
    path.unlink(missing_ok=True)
    base = sqlite3.connect(path)
    for name, (columns, rows) in tables.items():
        kinds = [f"{one} {'TEXT' if one in TEXTS else 'INTEGER'}" if typed else one for one in columns.split()]
        base.execute(f'CREATE TABLE "{name}" ({", ".join(kinds)})')
        for row in rows:
            base.execute(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(row))})', row)
    base.commit()
    base.close()
    return path


@pytest.fixture
def imported(tmp_path, capsys):
    """``imported(tables)``: exit code, session and what was said of an export with these tables."""

    def run(tables=TABLES, *options, path=None):
        path, out = path or export(tmp_path / "report.sqlite", tables), tmp_path / "out.gpusense"
        code = cli.main(["import", str(path), "-o", str(out), *options])
        return code, load(out) if code == 0 else None, capsys.readouterr().err

    return run


def test_an_export_is_all_there(imported):
    code, session, said = imported(TABLES, "--trace-all")
    assert code == 0
    assert "2 kernels, 1 copy, 1 memset, 2 waits, 2 blocks" in said
    assert "imported from Nsight Systems: no device samples" in said
    for missing in (
        "copies of unknown direction",
        "rows of CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        "ranges that end on another thread",
        "ranges without an end",
    ):
        assert missing in said
    first, second = session.kernels
    assert (first.name, first.full_name, first.start_ns - BASE, first.duration_ns) == (
        "gemm<float>",
        GEMM,
        5_000,
        300_000,
    )
    assert (first.device, first.context, first.stream, first.correlation_id) == (0, 1, 7, 1)
    assert (first.grid, first.block, first.registers_per_thread) == ((8, 2, 1), (128, 1, 1), 32)
    assert (first.static_shared_bytes, first.dynamic_shared_bytes) == (16, 1024)
    assert first.path == ("step", "forward")
    assert (second.name, second.grid, second.path) == ("gemm", None, ("step",))  # launched by a thread without blocks
    (copy,) = session.transfers
    assert (copy.direction, copy.bytes, copy.source, copy.destination) == ("cpu_to_gpu", 4096, "pageable", "device")
    assert (session.memsets[0].bytes, session.memsets[0].memory) == (64, "device")
    waits = {wait.name: wait for wait in session.syncs}
    assert (waits["stream_synchronize"].stream, waits["stream_synchronize"].path) == (7, ("step",))
    assert waits["context_synchronize"].stream is None
    (device,) = session.devices
    assert (device.index, device.uuid, device.pci_bus_id, device.sm_count) == (0, "GPU-1", "0000:1b:00.0", 132)
    assert (session.meta["start_ns"], session.meta["end_ns"]) == (BASE, BASE + 1_000_000)
    assert session.meta["threads"][0]["name"] == "main"
    assert session.meta["host"] == "box"
    assert "report.sqlite (Nsight Systems)" in "\n".join(text.full(session))


def test_without_the_other_tables_the_kernels_are_there(imported):
    kernels = TABLES["CUPTI_ACTIVITY_KIND_KERNEL"]
    few = "start end deviceId streamId", [row[:3] + row[4:5] for row in kernels[1]]
    code, session, said = imported({"CUPTI_ACTIVITY_KIND_KERNEL": few}, "--trace-all")
    assert code == 0
    assert "waits of the host are not known" in said
    assert "does not say when it was made" in said
    assert [(one.name, one.stream, one.path) for one in session.kernels] == [("(unnamed)", 7, ())] * 2
    assert session.devices[0].name == "device 0 of the trace"


def test_the_file_is_opened_for_reading_alone(imported, tmp_path):
    path = export(tmp_path / "report.sqlite")
    path.chmod(0o400)
    before = path.read_bytes()
    assert imported(path=path)[0] == 0
    assert path.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out.gpusense", "report.sqlite"]


ODD = (None, -1, 1 << 62, -(1 << 63), (1 << 63) - 1, 1.5, "text", "9" * 30, b"\xff\x00", "\x1b[31m")


def test_values_of_any_type_are_counted_and_never_end_it(imported, tmp_path):
    odd = {}
    for name, (columns, rows) in TABLES.items():
        changed = [(*row[:at], value, *row[at + 1 :]) for row in rows for at in range(len(row)) for value in ODD]
        odd[name] = columns, [*rows, *changed]
    code, session, said = imported(path=export(tmp_path / "odd.sqlite", odd, typed=False))
    assert code == 0
    assert "without a time" in said
    assert "records with times that cannot be" in said
    assert "\n".join(text.full(session))


def test_tables_without_times_are_named_and_views_are_not_read(imported):
    changed = {**TABLES, "CUPTI_ACTIVITY_KIND_MEMSET": ("begin end", [(1, 2)])}
    assert "the table CUPTI_ACTIVITY_KIND_MEMSET has no start: it was not read" in imported(changed)[2]


def test_a_view_that_never_ends_is_not_read(imported, tmp_path):
    path = export(tmp_path / "view.sqlite", {name: TABLES[name] for name in ("NVTX_EVENTS", "StringIds")})
    base = sqlite3.connect(path)
    endless = (
        "WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start AS end FROM n"
    )
    base.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}")
    base.commit()
    base.close()
    code, session, _ = imported(path=path)
    assert code == 0
    assert not session.kernels


def test_very_long_texts_are_cut(imported):
    names = "id value", [(1, "k" * (5 << 20)), *list(STRINGS.items())[1:]]
    ranges = TABLES["NVTX_EVENTS"][0], [(0, 900_000, 59, "s" * (5 << 20), None, MAIN, None)]
    _, session, _ = imported({**TABLES, "StringIds": names, "NVTX_EVENTS": ranges}, "--trace-all")
    assert max(len(one.full_name or "") for one in session.kernels) <= 8192
    assert len(session.blocks[0].name) == 200


def test_what_is_no_export_is_refused(imported, tmp_path):
    other = export(tmp_path / "other.sqlite", {"people": ("name", [("x",)])})
    code, _, said = imported(path=other)
    assert (code, "not an export of Nsight Systems" in said) == (2, True)
    whole = export(tmp_path / "whole.sqlite").read_bytes()
    for end in (16, 100, 4096, 8192, len(whole) // 2, len(whole) - 4096):
        cut = tmp_path / "cut.sqlite"
        cut.write_bytes(whole[:end])
        code, _, said = imported(path=cut)
        assert code == 2, end
        assert said.startswith(f"gpusense import: {cut}: the database cannot be read: "), said
    empty = {name: (columns, []) for name, (columns, _) in TABLES.items()}
    code, _, said = imported(empty)
    assert code == 1
    assert "it holds no kernel" in said

"""What the dashboard draws: every size, every theme, everything unknown, hostile names."""

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import GIB, SECOND, device, sample

from gpusense._records.metrics import Clocks, GpuMetrics, Memory, Pcie, Power, ProcessUsage, Thermal, Utilization
from gpusense.cli.dashboard import table
from gpusense.cli.dashboard.frame import State, band, frame
from gpusense.cli.dashboard.paint import Theme, bar, cells, clip, load_style, pad, paint
from gpusense.cli.dashboard.processes import Facts
from gpusense.cli.dashboard.view import View

PLAIN = Theme(color=False)
ASCII = Theme(color=False, ascii=True)
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def minute(count=120, **fields):
    return [sample(time_ns=place * SECOND // 2, busy=place % 100, **fields) for place in range(count)]


def state(*samples, **fields):
    return State(samples or (sample(),), minute(), now_ns=60 * SECOND, **fields)


def drawn(width=100, height=40, theme=PLAIN, **fields):
    return frame(state(**fields), width, height, theme)


def row(lines, label):
    return next(line for line in lines if line.startswith(label))


@pytest.mark.parametrize("theme", [Theme(), PLAIN, ASCII, Theme(ascii=True)])
@pytest.mark.parametrize("height", [1, 2, 3, 8, 24, 60, 200])
@pytest.mark.parametrize("width", [1, 5, 20, 40, 80, 132, 300])
def test_no_line_is_wider_or_more_than_the_screen(width, height, theme):
    for devices in (0, 1, 8):
        samples = tuple(sample(index) for index in range(devices))
        screen = State(samples, minute() if samples else (), 3, 60 * SECOND, notes=("why not " * 20,))
        lines = frame(screen, width, height, theme)
        assert len(lines) <= height
        for line in lines:
            assert cells(ESCAPES.sub("", line)) <= width
            assert theme.color or "\x1b" not in line
            assert not theme.ascii or line.isascii()


def test_what_one_gpu_shows():
    lines = drawn()
    assert lines[0] == "gpusense top · 1 GPU"
    assert "0 NVIDIA H100 80GB HBM3" in lines[1]
    assert "0000:1b:00.0 · driver 550.54" in lines[1]
    assert row(lines, "GPU").endswith(" 77 %")
    assert row(lines, "MEM").endswith("10.0/80.0 GiB 12 %")
    assert row(lines, "PWR").endswith("350/700 W")
    assert row(lines, "TEMP").endswith("64 °C WARM")
    assert row(lines, "CLK") == "CLK    1755 of 1980 MHz · memory 2619 MHz · P0 · held back: power_cap"
    assert row(lines, "PCIe") == "PCIe   gen 5 ×16 · in 1.20 GB/s · out 300 MB/s"
    assert row(lines, "use") == "use    SM 62 % · tensor 38 % · mem ctrl 39 %"
    assert row(lines, "heat") == "heat   hotspot 73 °C · memory 70 °C · slows at 87 °C · fan 40 %"
    assert row(lines, "power") == "power  average 340 W · energy 1.00 kWh"
    assert row(lines, "link") == "link   NVLink 18 up · in 4.00 GB/s · out 3.00 GB/s"
    assert "60 s ago" in "\n".join(lines)
    assert row(lines, "     PID").split() == ["PID", "GPU", "MEM▼", "GPU", "%", "COMMAND"]
    assert next(line for line in lines if "1234" in line).split() == ["1234", "9216", "MiB", "61", "%", "python"]
    assert lines[-1] == "q quit  h keys  p pause  tab next GPU"


def test_twenty_columns_keep_the_numbers():
    lines = drawn(20, 12)
    assert row(lines, "GPU") == "GPU    77 %"
    assert row(lines, "TEMP") == "TEMP   64 °C WARM"


@pytest.mark.parametrize(
    ("used", "style"), [(0, "good"), (69.9, "good"), (70, "warm"), (89.9, "warm"), (90, "hot"), (100, "hot")]
)
def test_memory_is_coloured_at_70_and_90_percent(used, style):
    codes = {"good": "32", "warm": "33", "hot": "31"}
    lines = frame(State((sample(memory=Memory(1000, int(used * 10))),)), 80, 24, Theme())
    memory = next(line for line in lines if "MEM" in line)
    assert f"\x1b[{codes[style]}m" in memory
    assert load_style(used) == style


@pytest.mark.parametrize(
    ("celsius", "thermal", "expected"),
    [
        (49, {}, "COOL"),
        (50, {}, "WARM"),
        (70, {}, "HOT"),
        (85, {}, "CRITICAL"),
        (85, {"slowdown_celsius": 100.0}, "HOT"),  # the device's own threshold, not ours
        (99, {"slowdown_celsius": 100.0}, "HOT"),
        (100, {"slowdown_celsius": 100.0}, "CRITICAL"),
        (58, {"slowdown_celsius": 100.0}, "COOL"),
        (59, {"slowdown_celsius": 100.0}, "WARM"),
        (105, {"shutdown_celsius": 110.0}, "HOT"),
        (None, {"slowdown_celsius": 100.0}, None),
    ],
)
def test_bands_follow_the_devices_thresholds(celsius, thermal, expected):
    assert band(sample(thermal=Thermal(celsius, **thermal))) == expected


def test_a_device_that_answers_nothing_says_why_in_every_row():
    bare = GpuMetrics(device(0), 0, 0, reasons=(("power.draw_watts", "denied: NO_PERMISSION (4)"),))
    lines = frame(State((bare,)), 80, 24, PLAIN)
    assert row(lines, "GPU").endswith("unsupported")
    assert row(lines, "MEM").endswith("unsupported")
    assert row(lines, "PWR").endswith("denied")
    assert row(lines, "TEMP").endswith("unsupported")
    assert row(lines, "CLK").split() == ["CLK", "–"]
    assert " 0 %" not in "\n".join(lines)  # unknown is never zero


@pytest.mark.parametrize("trouble", ["sleeping", "lost", "degraded"])
def test_a_device_in_trouble_says_which(trouble):
    why = f"{trouble}: the reason"
    troubled = sample(1)._replace(state=trouble, reasons=(("*", why),))
    lines = frame(State((sample(0), troubled), selected=1), 80, 30, PLAIN)
    assert why in lines
    assert any(line.startswith("▶1") and line.endswith(trouble) for line in lines)


def test_eight_gpus_are_listed_and_the_selected_one_is_marked():
    samples = tuple(sample(index, busy=10 * index) for index in range(8))
    lines = frame(State(samples, (), 5), 100, 40, PLAIN)
    assert lines[0] == "gpusense top · 8 GPUs"
    assert [line[:3].strip() for line in lines[1:9]] == ["0", "1", "2", "3", "4", "▶5", "6", "7"]
    assert "50 %" in lines[6]
    assert "─ 5 NVIDIA" in lines[9]


def test_a_low_screen_scrolls_the_list_to_the_selected_gpu():
    samples = tuple(sample(index) for index in range(8))
    lines = frame(State(samples, (), 7), 100, 14, PLAIN)
    assert any(line.startswith("▶7") for line in lines)
    assert row(lines, "GPU")


@pytest.mark.parametrize("selected", [0, 4, 7])
def test_eighty_by_twenty_four_has_all_eight_gpus_and_says_how_many_processes_it_does_not_show(selected):
    samples = tuple(sample(index, processes=users(20)) for index in range(8))
    lines = frame(State(samples, (), selected), 80, 24, PLAIN)
    assert [line[:2].strip("▶ ") for line in lines[1:9]] == list("01234567")
    assert lines[1 + selected].startswith(f"▶{selected}")
    assert sum("train" in line for line in lines) == 5
    assert "+15 processes" in lines[-1]


def users(count):
    return tuple(ProcessUsage(100 + place, GIB, 5.0, "train") for place in range(count))


def missing(lines, what):
    """How many of ``what`` the last lines say there was no room for."""
    found = re.search(rf"\+(\d+)(?: {what[:4]}|{what[0].upper()}\b)", "  ".join(lines[-2:]))
    return int(found[1]) if found else 0


@pytest.mark.parametrize("page", ["", "device", "processes", "curves"])
@pytest.mark.parametrize("width", [20, 47, 48, 80, 200])
def test_nothing_is_left_out_unsaid(width, page):
    samples = tuple(sample(index, processes=users(20)) for index in range(8))
    whole = None
    for height in (50, 36, 24, 20, 19, 18, *range(16, 4, -1)):
        state = State(samples, minute(), 3, 60 * SECOND, histories=[minute()] * 8, view=View(page=page))
        lines = frame(state, width, height, PLAIN)
        listed = sum(bool(re.match(r"[▶ ]\d ", line)) for line in lines)
        if page in ("", "curves"):
            assert listed + missing(lines, "GPU") == 8
        if page in ("", "device"):
            assert sum("trai" in line for line in lines) + missing(lines, "processes") == 20
            rows = sum(
                bool(re.match("GPU  |MEM|PWR|TEMP|CLK|PCIe|use|heat|power  av|mem    r|link", line)) for line in lines
            )
            curves = len({line.split()[0] for line in lines if re.match("(gpu|mem|power|temp) +[⠀-⣿]", line)})
            total = rows + curves + missing(lines, "lines")
            assert total == (whole := whole or total), height
        if page == "processes":
            assert sum("trai" in line for line in lines) + missing(lines, "processes") == 160
        assert len(lines) == height
        assert all(cells(line) <= width for line in lines)


def test_what_fits_has_no_line_of_what_does_not_and_no_heading_stands_alone():
    pictures = ["\n".join(frame(State((sample(processes=users(2)),)), 80, height, PLAIN)) for height in range(10, 30)]
    assert any("+2 processes" in picture for picture in pictures)
    assert "+" not in pictures[-1]
    assert all("train" in picture for picture in pictures if "PID" in picture)


FACTS = {100: Facts("ann", 99.6, 3 * GIB, 3725.0, "python train.py --lr 1"), 101: Facts(running_s=90_000.0)}


def test_a_process_has_what_the_host_knows_of_it():
    lines = frame(State((sample(processes=users(3)),), facts=FACTS), 120, 40, PLAIN)
    head = lines.index(row(lines, "     PID"))
    assert "|".join(lines[head].split()) == "PID|USER|GPU|MEM▼|GPU|%|CPU|%|HOST|MEM|TIME|COMMAND"
    first = "100|ann|1024|MiB|5|%|100|%|3072|MiB|1:02:05|python train.py --lr 1"
    assert "|".join(lines[head + 1].split(None, 11)) == first
    assert "|".join(lines[head + 2].split()) == "101|–|1024|MiB|5|%|–|–|1d|01h|train"
    assert "|".join(lines[head + 3].split()) == "102|–|1024|MiB|5|%|–|–|–|train"


def test_columns_give_way_in_order_and_that_of_the_order_never():
    def columns(width, **view):
        state = State((sample(0, processes=users(1)), sample(1)), facts=FACTS, view=View(page="processes", **view))
        return (
            frame(state, width, 10, PLAIN)[1]
            .replace("GPU MEM", "GPUMEM")
            .replace("HOST MEM", "HOSTMEM")
            .replace(" %", "%")
            .split()
        )

    every = ["PID", "USER", "GPU", "GPUMEM▼", "GPU%", "CPU%", "HOSTMEM", "TIME", "COMMAND"]
    assert columns(80) == every
    fits = {76: "TIME", 67: "HOSTMEM", 57: "USER", 48: "CPU%", 40: "GPU", 35: "GPU%", 28: "GPUMEM▼"}
    for width, gone in fits.items():
        assert columns(width + 1) == every, width
        every.remove(gone)
        assert columns(width) == every, width
    assert columns(35, sort="cpu_percent") == ["PID", "CPU%▼", "COMMAND"]
    assert (
        "+3 columns"
        in frame(State((sample(processes=users(1)),), facts=FACTS, view=View(page="processes")), 50, 9, PLAIN)[-1]
    )


def test_without_a_gpu_the_reasons_are_told_whole():
    hint = "install the vendor's driver, or use a machine that has one"
    note = f"nvml: libnvidia-ml.so.1: cannot open shared object file ({hint})"
    lines = frame(State(notes=(note,)), 40, 20, PLAIN)
    assert "no GPU to watch" in lines
    assert " ".join("\n".join(lines).split()).count(note) == 1


def test_a_low_screen_keeps_the_rows_and_a_high_one_gets_graphs():
    assert [line[:4].strip() for line in drawn(100, 9)[2:8]] == ["GPU", "MEM", "PWR", "TEMP", "CLK", "PCIe"]
    assert not any("60 s ago" in line for line in drawn(100, 12))
    high = drawn(100, 50)
    assert sum(1 for line in high if "⣿" in line) >= 6


HOSTILE = [
    "\x1b[2J\x1b[31mred",
    "new\nline\r\ttab\x07",
    "<script>&",
    "混合 wide 名前",
    "e\u0301\u200dcombined",
    "\udcff surrogate",
    "\u202eright to left",
    "",
    "x" * 4096,
]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("theme", [Theme(), PLAIN, ASCII])
def test_hostile_names_stay_text(name, theme):
    usage = ProcessUsage(1, 5, None, name, True)
    hostile = sample(0, processes=(usage,))._replace(device=device(0, name))
    for samples in ((hostile,), (hostile, hostile)):
        hostile = {"notes": (name or "-",), "facts": {1: Facts(name, command=name)}, "view": View(words=name[:9])}
        lines = frame(State(samples, minute(), 0, 60 * SECOND, **hostile), 60, 40, theme)
        lines += frame(State(samples, view=View(words=name, typing="")), 60, 5, theme)[-1:]
        for line in lines:
            text = ESCAPES.sub("", line)
            assert text.isprintable(), ascii(text)
            assert cells(text) <= 60
            text.encode("utf-8")


@settings(deadline=None)
@given(st.text(max_size=40), st.integers(0, 30))
def test_padded_text_takes_exactly_its_cells(text, room):
    padded = pad(text, room)
    assert cells(padded) == room
    assert sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in padded) == room


@settings(deadline=None)
@given(st.text(max_size=40), st.integers(0, 30))
def test_clipping_never_exceeds_the_room(text, room):
    assert cells(clip(text, room)) <= room


@settings(deadline=None)
@given(st.one_of(st.none(), st.floats(allow_nan=False)), st.integers(-3, 50), st.booleans())
def test_a_bar_takes_its_width_whatever_the_share(share, width, in_ascii):
    assert len(bar(share, width, Theme(False, in_ascii))) == max(width, 0)


def test_a_bar_grows_by_eighths():
    assert bar(0.5, 4, PLAIN) == "██░░"
    assert bar(0.53125, 4, PLAIN) == "██▏░"
    assert bar(1.0, 4, PLAIN) == "████"
    assert bar(0.5, 4, ASCII) == "##.."


def test_colour_costs_no_cells():
    line = [("red", "hot"), ("plain", ""), ("more", "warm")]
    assert paint(line, 7, PLAIN) == "redpla…"
    assert ESCAPES.sub("", paint(line, 7, Theme())) == "redpla…"
    assert paint(line, 8, ASCII) == "redplai~"
    assert paint(line[:2], 8, PLAIN) == "redplain"


@pytest.mark.parametrize(
    ("fields", "label", "text"),
    [
        ({"memory": Memory(None, 3 << 30)}, "MEM", "3.0 GiB"),
        ({"memory": Memory(16 << 30, 8 << 30, unified=True)}, "MEM", "8.0/16.0 GiB 50 % shared"),
        ({"memory": Memory(8, 0, shared_used_bytes=1 << 30, shared_total_bytes=4 << 30)}, "mem", "1.0/4.0 GiB"),
        ({"power": Power(41.4, None, None)}, "PWR", "41 W"),
        ({"pcie": Pcie(3, 8, 4, 16)}, "PCIe", "gen 3 ×8 of gen 4 ×16"),
        ({"pcie": Pcie(replay_count=2)}, "health", "2 PCIe replays"),
        ({"utilization": Utilization(5, media_percent=30)}, "use", "video 30 %"),
        ({"clocks": Clocks(throttle_reasons=("idle",))}, "CLK", "–"),
    ],
)  # fmt: skip
def test_rows_show_what_is_known_and_nothing_else(fields, label, text):
    lines = frame(State((sample(**fields),)), 80, 40, PLAIN)
    assert row(lines, label).split(None, 1)[1].endswith(text)


def test_allocations_are_shown_where_known():
    assert "alloc  12 live, 340 MiB" in drawn(allocations="12 live, 340 MiB")


def test_a_steady_load_draws_the_same_graph_every_time():
    history = minute(240, utilization=Utilization(42.0))
    pictures = {
        tuple(frame(State((history[-1],), history, now_ns=now_ns), 100, 40, PLAIN))
        for now_ns in range(119 * SECOND, 120 * SECOND, SECOND // 7)
    }
    assert len(pictures) == 1


def test_of_very_many_processes_only_those_that_are_shown_are_drawn(monkeypatch):
    drawn, draw = [], table._line
    monkeypatch.setattr(table, "_line", lambda *line: drawn.append(line) or draw(*line))
    users = tuple(ProcessUsage(pid) for pid in range(65_536))
    lines = frame(State((sample(processes=users),)), 80, 40, PLAIN)
    assert 1 < len(drawn) < 40
    assert f"+{65_536 - len(drawn) + 1:,} processes" in lines[-1]

"""The loop behind ``gpusense top``: keys, pauses, resizes, replays; on a screen of lists and a clock of numbers."""

import io

import pytest
from support.devices import GIB, SECOND, ScriptedMonitor, sample

from gpusense._records.metrics import Memory, ProcessUsage
from gpusense._records.records import GpuAllocation
from gpusense.cli.dashboard import screen as _terminal
from gpusense.cli.dashboard.dashboard import Live, Replay, once, run, theme_for
from gpusense.cli.dashboard.paint import Theme
from gpusense.cli.dashboard.view import View, press
from gpusense.session import Session

PLAIN = Theme(color=False)


class Clock:
    def __init__(self, now=100.0):
        self.now = now

    def __call__(self):
        return self.now

    def ns(self):
        return int(self.now * SECOND)


class ListScreen:
    """Collects the pictures. ``script``: for each wait the keys that come, or a number of seconds that pass."""

    def __init__(self, clock, script, size=(100, 40)):
        self.clock = clock
        self.script = list(script)
        self.shown = []
        self.waits = []
        self._size = size

    def size(self):
        return self._size

    def draw(self, lines):
        self.shown.append(lines)

    def wait(self, seconds):
        self.waits.append(seconds)
        step = self.script.pop(0) if self.script else "q"
        if isinstance(step, tuple):
            self._size = step
            return []
        if isinstance(step, str):
            return step.split()
        self.clock.now += step
        return []


def played(script, devices=2, size=(100, 40)):
    clock = Clock()
    screen = ListScreen(clock, script, size)
    run(Live(ScriptedMonitor(devices, clock.ns), clock=clock.ns), screen, PLAIN, 0.5, clock)
    return screen


def marked(lines):
    return next((line[1] for line in lines if line.startswith("▶")), None)


@pytest.mark.parametrize("key", ["q", "Q"])
def test_it_draws_at_once_and_ends_on_a_key(key):
    screen = played([key])
    assert len(screen.shown) == 1


def test_it_draws_every_interval_and_holds_the_period():
    screen = played([0.5, 0.5, 0.5])
    assert len(screen.shown) == 4
    assert screen.waits == pytest.approx([0.5] * 4)


def test_a_late_tick_is_skipped_and_not_bunched():
    screen = played([1.7, 0.3])
    assert screen.waits == pytest.approx([0.5, 0.3, 0.5])


def test_keys_redraw_at_once_and_do_not_delay_the_next_sample():
    screen = played(["tab", "tab", "tab", 0.5])
    assert [marked(lines) for lines in screen.shown] == ["0", "1", "0", "1", "1"]
    assert screen.waits[:4] == pytest.approx([0.5] * 4)


@pytest.mark.parametrize(
    ("keys", "place"),
    [("tab", "1"), ("down", "1"), ("right", "1"), ("up", "7"), ("shift-tab", "7"), ("left", "7"), ("escape", "0")],
)
def test_keys_choose_the_gpu_and_wrap_round(keys, place):
    assert marked(played([keys], devices=8).shown[1]) == place


def test_pause_freezes_the_picture_and_says_so():
    screen = played([0.5, "p", 0.5, 0.5, "p", 0.5])
    assert "paused" in screen.shown[2][0]
    assert screen.shown[2][1:] == screen.shown[3][1:] == screen.shown[4][1:]
    assert "paused" not in screen.shown[5][0]
    assert screen.shown[6] != screen.shown[4]


def test_the_keys_can_be_read_at_any_size_also_while_it_changes():
    screen = played(["h", (20, 5), "page-down", (200, 50), "h"])
    assert any(line.startswith("PgUp, PgDn, Home, End") for line in screen.shown[1])
    assert screen.shown[2][1:4] == ["q: quit", "h, ?: these keys;", "+30 lines"]
    assert screen.shown[3][3] == "+10 above  +20 lines"
    assert any(line.startswith("PgUp, PgDn, Home, End") for line in screen.shown[4])
    assert screen.shown[5] == played([(200, 50)]).shown[1]


def test_scrolling_ends_where_the_processes_do():
    listed = tuple(ProcessUsage(100 + place, GIB, 5.0, "train") for place in range(40))
    monitor = ScriptedMonitor(1, int)
    monitor.latest = lambda: (sample(processes=listed),)
    screen = ListScreen(Clock(), ["t", "end", "end", "page-up", "home"], (80, 24))
    run(Live(monitor, clock=int), screen, PLAIN, 0.5, screen.clock)
    assert [lines[2].split()[0] for lines in screen.shown[1:]] == ["100", "119", "119", "109", "100"]
    assert "+9 above  +10 processes" in screen.shown[4][-1]


def test_processes_are_sorted_and_filtered_by_keys():
    users = (
        ProcessUsage(7, 3 * GIB, 1.0, "serve"),
        ProcessUsage(8, GIB, 9.0, "train"),
        ProcessUsage(9, 2 * GIB, None, "x"),
    )
    monitor = ScriptedMonitor(1, int)
    monitor.latest = lambda: (sample(processes=users),)

    def order(*keys):
        screen = ListScreen(Clock(), ["t", *keys, "escape"], (80, 24))
        run(Live(monitor, clock=int), screen, PLAIN, 0.5, screen.clock)
        lines = screen.shown[len(keys) + 1]
        return [line.split()[0] for line in lines[2:-1] if line], lines[-1]

    assert order()[0] == ["7", "9", "8"]
    assert order("r")[0] == ["8", "9", "7"]
    assert order("s")[0] == ["8", "7", "9"]
    assert order("s r")[0] == ["7", "8", "9"]  # unknown comes last either way
    assert order("S S S S")[0] == ["7", "8", "9"]
    assert order("/", "T", "R", "enter") == (["8"], '"TR": 1 process of 3  Esc drops it')
    assert order("/", "q", "backspace", "r") == (["7", "8"], "filter: r_")
    assert order("/", "t", "enter", "/", "x", "escape")[1].startswith('"t": 1 process')
    assert order("/", "t", "enter", "escape")[0] == ["7", "9", "8"]
    assert order("p", "/", "t", "enter")[0] == ["8"]


def test_all_gpus_are_drawn_as_curves():
    lines = played(["a"], devices=8, size=(80, 24)).shown[1]
    assert [line[:2].strip("▶ ") for line in lines[1:17:2]] == list("01234567")
    assert all(line.startswith("gpu ") and "⣿" in line for line in lines[2:18:2])
    lines = played(["a"], devices=8, size=(40, 10)).shown[1]
    assert [line[:2].strip("▶ ") for line in lines[1:8]] == list("0123456")
    assert "+1 GPU" in lines[8]


def test_while_paused_another_gpu_can_be_looked_at():
    screen = played(["p", "tab"])
    assert marked(screen.shown[2]) == "1"
    assert "paused" in screen.shown[2][0]


def test_a_resize_redraws_at_once():
    screen = played([(40, 10)])
    assert len(screen.shown) == 2
    assert len(screen.shown[1]) == 10
    assert all(len(line) <= 40 for line in screen.shown[1])


def test_without_a_gpu_it_stays_and_says_why():
    clock = Clock()
    screen = ListScreen(clock, [0.5])
    asked = []

    def absent():
        asked.append(1)
        return ("nvml: no driver",)

    run(Live(ScriptedMonitor(0, clock.ns), absent, clock.ns), screen, PLAIN, 0.5, clock)
    assert "nvml: no driver" in screen.shown[0]
    assert len(screen.shown) == 2
    assert asked == [1]  # reasons are looked for once


def test_a_monitor_that_has_trouble_says_so():
    monitor = ScriptedMonitor(1, Clock().ns)
    monitor.problem = "nvml has not answered yet"
    assert "nvml has not answered yet" in Live(monitor, clock=Clock().ns).state(View()).notes


def recorded(seconds=20, devices=1, allocations=()):
    metrics = [
        sample(index, 1000 * SECOND + place * SECOND, busy=place, memory=Memory(80 * GIB, place * GIB))
        for place in range(seconds + 1)
        for index in range(devices)
    ]
    return Session(metrics=metrics, records=list(allocations))


def busy(state):
    return state.latest[state.selected].utilization.gpu_percent


def test_a_replay_shows_what_was_true_at_each_moment():
    replay = Replay(recorded())
    for second in (0, 7, 20):
        state = replay.at((1000 + second) * SECOND, View())
        assert busy(state) == second
        assert len(state.history) == second + 1
    assert state.title == "gpusense top, replay 20 s of 20 s"


@pytest.mark.parametrize(
    ("length_ns", "title"),
    [
        (400_000_000, "replay 0.10 s of 0.40 s"),
        (10_000_000, "replay 0.0025 s of 0.0100 s"),
        (4 * SECOND, "replay 1.0 s of 4.0 s"),
        (0, "replay of one moment"),
    ],
)
def test_a_short_replay_says_where_it_stands_as_finely_as_it_is_long(length_ns, title):
    samples = [sample(0, 1000 * SECOND + place * length_ns // 4) for place in range(5 if length_ns else 1)]
    replay = Replay(Session(metrics=samples))
    assert replay.at(1000 * SECOND + length_ns // 4, View()).title == f"gpusense top, {title}"


def test_a_replay_is_as_long_as_its_run():
    samples = [sample(0, 1000 * SECOND + place * 100_000_000) for place in range(1, 4)]
    meta = {"start_ns": 1000 * SECOND, "end_ns": 1000 * SECOND + 469_000_000}
    replay = Replay(Session(meta=meta, metrics=samples))
    assert replay.state(View()).title == "gpusense top, replay 0.00 s of 0.47 s"
    replay.seek(5)
    assert replay.at(replay.end_ns, View()).title == "gpusense top, replay 0.47 s of 0.47 s"


def test_a_replay_runs_pauses_seeks_and_stops_at_its_ends():
    clock = Clock()
    replay = Replay(recorded(), clock.ns)
    assert busy(replay.state(View())) == 0
    clock.now += 3
    assert busy(replay.state(View())) == 3
    clock.now += 100
    assert busy(replay.state(View(paused=True))) == 3
    assert replay.seek(5)
    assert busy(replay.state(View(paused=True))) == 8
    replay.seek(-100)
    assert busy(replay.state(View())) == 0
    clock.now += 1e6
    assert busy(replay.state(View())) == 20


def test_arrows_seek_in_a_replay_and_choose_the_gpu_elsewhere():
    replay = Replay(recorded())
    assert press("right", View(), replay) == View()
    assert busy(replay.state(View(paused=True))) == 5
    assert press("right", View(), Live(ScriptedMonitor(2, int))) == View(selected=1)


def test_a_replay_without_metrics_says_what_is_missing():
    replay = Replay(Session())
    state = replay.state(View())
    assert "no device metrics" in state.notes[0]
    assert any("no device metrics" in line for line in once(state.latest, 200, PLAIN, state.notes))


def test_a_replay_counts_live_allocations():
    at = 1000 * SECOND
    records = [
        GpuAllocation("alloc", 64 << 20, at + 1, 0xA, 0),
        GpuAllocation("alloc", 32 << 20, at + 2, 0xB, 0),
        GpuAllocation("free", 64 << 20, at + 2 * SECOND, 0xA, 0),
    ]
    replay = Replay(recorded(allocations=records))
    assert replay.at(at, View()).allocations == "0 live, 0 MiB"
    assert replay.at(at + SECOND, View()).allocations == "2 live, 96 MiB"
    assert replay.at(at + 3 * SECOND, View()).allocations == "1 live, 32 MiB"
    assert Replay(recorded()).at(at, View()).allocations is None


def test_once_prints_every_gpu_in_full_and_no_keys():
    lines = once([sample(0), sample(1)], 80, PLAIN)
    assert lines[0] == "gpusense top · 2 GPUs"
    assert sum(line.startswith("GPU ") for line in lines) == 2
    assert not any("quit" in line for line in lines)
    assert lines[-1].strip()


class Output(io.StringIO):
    def __init__(self, encoding, terminal):
        super().__init__()
        self._encoding = encoding
        self._terminal = terminal

    @property
    def encoding(self):
        return self._encoding

    def isatty(self):
        return self._terminal


@pytest.mark.parametrize(
    ("encoding", "terminal", "env", "theme"),
    [
        ("utf-8", True, {"TERM": "xterm"}, Theme(True, False)),
        ("utf-8", False, {"TERM": "xterm"}, Theme(False, False)),
        ("utf-8", True, {"TERM": "dumb"}, Theme(False, False)),
        ("utf-8", True, {"TERM": "xterm", "NO_COLOR": "1"}, Theme(False, False)),
        ("utf-8", True, {"TERM": "xterm", "NO_COLOR": ""}, Theme(True, False)),
        ("cp1252", True, {"TERM": "xterm"}, Theme(True, True)),
        ("ascii", True, {"TERM": "xterm"}, Theme(True, True)),
        (None, True, {"TERM": "xterm"}, Theme(True, True)),
        ("no such codec", True, {"TERM": "xterm"}, Theme(True, True)),
        ("utf-8", True, {"TERM": "xterm", "LC_ALL": "C"}, Theme(True, True)),
        ("utf-8", True, {"TERM": "xterm", "LC_ALL": "C.UTF-8"}, Theme(True, False)),
    ],
)
def test_the_theme_follows_terminal_environment_and_encoding(monkeypatch, encoding, terminal, env, theme):
    for name in ("TERM", "NO_COLOR", "LC_ALL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert theme_for(Output(encoding, terminal)) == theme


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("q", ["q"]),
        ("\x1b[A\x1b[B", ["up", "down"]),
        ("\x1bOC\x1bOD", ["right", "left"]),
        ("\t\x1b[Z", ["tab", "shift-tab"]),
        ("\r\n\x7f\b", ["enter", "enter", "backspace", "backspace"]),
        ("\x1b", ["escape"]),
        ("\x1b[1;5Cq", ["q"]),  # a sequence we have no name for is dropped whole
        ("\x1b[15~p", ["p"]),
        ("\x1b[5~\x1b[6~\x1b[H\x1bOF", ["page-up", "page-down", "home", "end"]),
        ("\x1b[", []),
        ("", []),
    ],
)
def test_keys_have_names(sent, keys):
    assert _terminal.names(sent) == keys


def test_only_changed_lines_are_written(monkeypatch):
    out = Output("utf-8", True)
    monkeypatch.setattr(_terminal, "size", lambda _out: (80, 24))
    screen = _terminal.Screen(out, io.StringIO())
    screen.draw(["one", "two", "three"])
    before = len(out.getvalue())
    screen.draw(["one", "2", "three"])
    assert out.getvalue()[before:] == "\x1b[2;1H\x1b[K2"
    before = len(out.getvalue())
    screen.draw(["one"])
    assert out.getvalue()[before:] == "\x1b[2;1H\x1b[J"
    before = len(out.getvalue())
    screen.draw(["one"])
    assert out.getvalue()[before:] == ""
    monkeypatch.setattr(_terminal, "size", lambda _out: (40, 10))
    screen.draw(["one"])
    assert out.getvalue()[before:] == "\x1b[2J\x1b[1;1H\x1b[Kone"

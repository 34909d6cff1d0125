"""The dashboard in a real terminal (tmux): drawn, resized, driven by keys, stopped, ended; the terminal put back."""

import os
import pathlib
import shutil
import subprocess
import sys
import time
import uuid

import pytest
from support.machine import HERE, ROOT, require

#: N scripted devices at a moment that stands still, on the real terminal.
PROGRAM = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
from gpusense.cli.dashboard import screen as _terminal, dashboard
from support.devices import SECOND, ScriptedMonitor
clock = lambda: 100 * SECOND
feed = dashboard.Live(ScriptedMonitor(int(sys.argv[1]), clock), lambda: ("nvml: no driver here",), clock)
print("before")
with _terminal.Screen(sys.stdout, sys.stdin) as screen:
    dashboard.run(feed, screen, dashboard.theme_for(sys.stdout), 0.2)
print("after")
"""


class Tmux:
    """One tmux server of our own with one window."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._socket = f"gpusense-{uuid.uuid4().hex[:8]}"
        self._env = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color", "TMUX_TMPDIR": str(folder)}
        self._env.pop("TMUX", None)
        self._env.pop("NO_COLOR", None)

    def call(self, *arguments: str) -> str:
        command = ["tmux", "-u", "-L", self._socket, "-f", "/dev/null", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=self._env, timeout=20).stdout

    def start(self, command: "list[str]", width: int = 100, height: int = 32) -> None:
        quoted = " ".join(f"'{word}'" for word in command)
        self.call(
            "new-session",
            "-d",
            "-x",
            str(width),
            "-y",
            str(height),
            f"trap : INT; {quoted}; echo code $?; exec sleep 100",
        )

    def resize(self, width: int, height: int) -> None:
        self.call("resize-window", "-x", str(width), "-y", str(height))

    def keys(self, *names: str) -> None:
        self.call("send-keys", *names)

    def screen(self, *flags: str) -> "list[str]":
        return self.call("capture-pane", "-p", *flags).splitlines()

    def until(self, condition, what: str, seconds: float = 15) -> "list[str]":
        end = time.monotonic() + seconds
        while True:
            lines = self.screen()
            if condition(lines):
                return lines
            assert time.monotonic() < end, f"no {what} in:\n" + "\n".join(lines)
            time.sleep(0.05)


@pytest.fixture
def tmux(tmp_path):
    require(shutil.which("tmux"), "tmux")
    server = Tmux(tmp_path)
    yield server
    server.call("kill-server")


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(root=str(ROOT), tests=str(HERE)))
    return [sys.executable, str(path)]


def has(text):
    return lambda lines: any(text in line for line in lines)


def test_one_gpu_is_drawn_resized_paused_and_quit(tmux, program):
    tmux.start([*program, "1"])
    lines = tmux.until(has("q quit"), "dashboard")
    assert lines[0] == "gpusense top · 1 GPU"
    assert any(line.startswith("GPU") and "█" in line for line in lines)
    assert any("⣿" in line for line in lines)
    assert len(lines) == 32
    assert lines[1].endswith("driver 550.54")  # the last column is not lost
    assert len(lines[1]) == 100
    for width, height in ((60, 18), (20, 10), (200, 50), (80, 24)):
        tmux.resize(width, height)
        lines = tmux.until(
            lambda rows, h=height: len(rows) == h and rows[0].startswith("gpusense top") and "q quit" in rows[-1],
            f"{width}x{height}",
        )
        assert max(map(len, lines)) <= width
        assert any(line.startswith("GPU") and "%" in line for line in lines)
    tmux.keys("p")
    tmux.until(has("paused"), "pause")
    tmux.keys("q")
    lines = tmux.until(has("code 0"), "end")
    assert lines[:2] == ["before", "after"]  # the screen is as it was
    assert not has("GPU")(lines)


def test_eight_gpus_and_the_keys(tmux, program):
    tmux.start([*program, "8"])
    tmux.until(has("8 GPUs"), "dashboard")
    tmux.until(has("▶0"), "first GPU")
    tmux.keys("Tab", "Down", "Right")
    tmux.until(has("▶3"), "fourth GPU")
    tmux.keys("BTab", "Up")
    lines = tmux.until(has("▶1"), "second GPU")
    assert any("─ 1 NVIDIA" in line for line in lines)


def test_without_a_gpu_the_reason_is_on_the_screen(tmux, program):
    tmux.start([*program, "0"], 60, 12)
    lines = tmux.until(has("no GPU to watch"), "reason")
    assert has("nvml: no driver here")(lines)
    tmux.keys("q")
    tmux.until(has("code 0"), "end")


@pytest.mark.parametrize(("key", "code"), [("C-c", "code 130"), ("SIGTERM", "code 143"), ("SIGHUP", "code 129")])
def test_every_end_puts_the_terminal_back(tmux, program, key, code):
    tmux.start([*program, "1"])
    tmux.until(has("q quit"), "dashboard")
    if key.startswith("SIG"):
        shell = tmux.call("list-panes", "-F", "#{pane_pid}").strip()
        (child,) = (pathlib.Path(f"/proc/{shell}/task/{shell}/children").read_text()).split()
        os.kill(int(child), getattr(__import__("signal"), key))
    else:
        tmux.keys(key)
    lines = tmux.until(has(code), "end")
    assert lines[0] == "before"
    assert tmux.call("display-message", "-p", "#{cursor_flag}#{alternate_on}").strip() == "10"


def test_a_stopped_dashboard_gives_the_terminal_back_and_comes_again(tmux, program):
    tmux.call("new-session", "-d", "-x", "100", "-y", "32", "bash --norc --noprofile -i")
    tmux.keys(f"{program[0]} {program[1]} 1", "Enter")
    tmux.until(has("q quit"), "dashboard")
    tmux.keys("C-z")
    lines = tmux.until(has("Stopped"), "stop")
    assert not has("q quit")(lines)
    tmux.keys("fg", "Enter")
    tmux.until(has("q quit"), "dashboard again")
    tmux.keys("q")
    tmux.until(has("after"), "end")

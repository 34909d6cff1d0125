"""``gpusense top`` as a command: what it prints without a terminal, its exit codes, its JSON."""

import json

import pytest
from support.devices import SECOND, sample

from gpusense import cli, monitor, testing
from gpusense._records.json_codec import metrics_from_dict
from gpusense._records.records import Unavailable
from gpusense.cli import top
from gpusense.cli.dashboard import dashboard
from gpusense.cli.dashboard.view import View
from gpusense.session import _format
from gpusense.session._writer import Writer


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def devices(monkeypatch):
    """``devices(n)``: this process has n scripted devices."""

    def have(count):
        reasons = () if count else (Unavailable("nvml", "no driver"), Unavailable("amd_sysfs", "no card"))
        many = tuple(sample(place) for place in range(count))
        monkeypatch.setattr(monitor, "snapshot", lambda wanted=None, gpm=False: many)
        monkeypatch.setattr(monitor, "sources", lambda: reasons)

    return have


@pytest.mark.parametrize("flags", [[], ["--once"]])
def test_without_a_terminal_one_sample_is_printed(devices, capsys, flags):
    devices(2)
    assert cli.main(["top", *flags]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert text.count("\nGPU ") == 2
    assert "quit" not in text


def test_no_gpu_is_an_answer(devices, capsys):
    devices(0)
    assert cli.main(["top", "--once"]) == 1
    text = capsys.readouterr().out
    assert "no GPU to watch" in text
    assert "nvml: no driver" in text
    assert "amd_sysfs: no card" in text


def test_where_there_is_no_device_the_exit_code_is_that_of_every_verb_that_prints_devices(capsys, monkeypatch):
    monkeypatch.setattr("gpusense.backends.all_devices", lambda without: ((), ()))
    with testing.fake_gpus(testing.ScriptedSource(0)):
        assert {cli.main(words) for words in (["devices"], ["monitor", "--once"], ["top", "--once"])} == {1}
    capsys.readouterr()


def test_json_is_one_object_with_every_device(devices, capsys):
    devices(2)
    assert cli.main(["top", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["schema"] == "gpusense.metrics/1"
    assert [metrics_from_dict(one) for one in row["devices"]] == [sample(0), sample(1)]


def test_json_without_a_gpu_says_why(devices, capsys):
    devices(0)
    assert cli.main(["top", "--json"]) == 1
    row = json.loads(capsys.readouterr().out)
    assert row["devices"] == []
    assert row["unavailable"] == {"nvml": "no driver", "amd_sysfs": "no card"}


def test_ascii_on_request(devices, capsys):
    devices(1)
    assert cli.main(["top", "--once", "--ascii"]) == 0
    assert capsys.readouterr().out.isascii()


def test_a_device_that_does_not_exist_is_code_2(monkeypatch, capsys):
    def snapshot(wanted, gpm):
        raise ValueError(f"no device {wanted[0]!r}")

    monkeypatch.setattr(monitor, "snapshot", snapshot)
    assert cli.main(["top", "--once", "--device", "9"]) == 2
    assert "no device '9'" in capsys.readouterr().err


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "1e9", "soon"])
def test_an_interval_that_makes_no_sense_is_refused(interval, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["top", f"--interval={interval}"])
    assert ended.value.code == 2
    assert "--interval" in capsys.readouterr().err


def test_a_session_is_replayed_at_its_end(tmp_path, capsys):
    path = tmp_path / "run.gpusense"
    writer = Writer(path)
    writer.json(_format.META, {"start_ns": 0, "end_ns": 30 * SECOND})
    writer.rows(_format.METRICS, [sample(0, place * SECOND, busy=place) for place in range(31)])
    writer.close()
    assert cli.main(["top", "--replay", str(path)]) == 0
    assert any(line.startswith("GPU") and line.endswith("30 %") for line in capsys.readouterr().out.splitlines())
    assert cli.main(["top", "--replay", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["devices"][0]["utilization"]["gpu_percent"] == 30


def test_a_session_without_metrics_says_so(tmp_path, capsys):
    path = tmp_path / "run.gpusense"
    writer = Writer(path)
    writer.json(_format.META, {"start_ns": 0, "end_ns": 1})
    writer.close()
    assert cli.main(["top", "--replay", str(path)]) == 0
    assert "no device metrics" in capsys.readouterr().out


def test_a_session_that_is_none_is_code_2(tmp_path, capsys):
    path = tmp_path / "text.gpusense"
    path.write_text("not a session")
    assert cli.main(["top", "--replay", str(path)]) == 2
    assert cli.main(["top", "--replay", str(tmp_path / "none")]) == 2
    assert "gpusense top:" in capsys.readouterr().err


def test_the_shown_device_is_read_in_full_and_of_the_others_what_a_line_shows():
    clock = testing.ManualClock()
    source = testing.ScriptedSource(8, clock=clock)

    def readings(word, seconds):
        source.calls.clear()
        clock.advance(seconds)
        return [sum(device == index and word in lanes for device, lanes in source.calls) for index in range(8)]

    with top.watching(0.5, source=source, clock=clock) as running, top.Focus(0.5, source=source, clock=clock) as focus:
        clock.advance(1)
        focus.on(3)
        assert readings("processes", 30) == [1, 1, 1, 14, 1, 1, 1, 1]
        focus.on(5)
        focus.on(5)
        assert readings("processes", 3)[5] == 1  # soon, not when its old turn comes
        assert readings("processes", 30) == [1, 1, 1, 1, 1, 15, 1, 1]
        assert readings("slow", 60) == [1, 1, 1, 1, 1, 3, 1, 1]
        assert readings("medium", 60) == [2, 2, 2, 2, 2, 30, 2, 2]
        assert readings("fast", 60) == [60, 60, 60, 60, 60, 120, 60, 60]
        assert len(running.history(20, 5)) == len(running.history(20, 0)) == 21
        assert len(focus.on(5).history(20)) == 41
    assert not monitor.shared.samplers


def test_with_a_longer_interval_all_devices_are_sampled_as_often():
    clock = testing.ManualClock()
    source = testing.ScriptedSource(2, clock=clock)
    with top.watching(2, source=source, clock=clock) as running, top.Focus(2, source=source, clock=clock) as focus:
        clock.advance(1)
        focus.on(1)
        clock.advance(20)
        assert len(running.history(19, 0)) == len(running.history(19, 1)) == 10


def test_the_picture_has_the_samples_of_both_monitors_each_once():
    clock = testing.ManualClock()
    source = testing.ScriptedSource(2, clock=clock)
    source.set(1, {"utilization.gpu_percent": 1.0})
    with top.watching(0.5, source=source, clock=clock) as running, top.Focus(0.5, source=source, clock=clock) as focus:
        feed = dashboard.Live(running, clock=clock.monotonic_ns, focus=focus.on)
        clock.advance(4)
        assert len(feed.state(View(selected=1)).history) == 5
        clock.advance(2.5)
        source.set(1, {"utilization.gpu_percent": 2.0})
        clock.advance(0.5)
        source.set(1, {"utilization.gpu_percent": 3.0})
        clock.advance(0.5)  # a half second, where only the closer look has one
        state = feed.state(View(selected=1))
        times = [sample.monotonic_ns / SECOND for sample in state.history]
        assert times == [0, 1, 2, 3, 4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5]
        assert state.latest[1].utilization.gpu_percent == 3
        assert state.latest[1] == state.history[-1]

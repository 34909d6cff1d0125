"""``gpusense monitor`` over scripted devices."""

import io
import json
import re
import sys
import time

import pytest

from gpusense import cli, monitor, testing
from gpusense._records.json_codec import metrics_from_dict
from gpusense.exporters import prometheus


@pytest.fixture
def source():
    made = testing.ScriptedSource(2)
    made.set(0, {
        "utilization.gpu_percent": 87.0, "memory.used_bytes": 8 << 30, "memory.total_bytes": 16 << 30,
        "power.draw_watts": 300.0, "power.limit_watts": 350.0, "thermal.gpu_celsius": 61.0, "thermal.fan_percent": 40.0,
        "clocks.graphics_mhz": 1755.0, "clocks.throttle_reasons": ("idle", "sw_power_cap"),
        "pcie.rx_bytes_per_s": 1.5e9, "pcie.tx_bytes_per_s": 0.0, "health.last_xid": 79,
    })  # fmt: skip
    made.trouble(1, "lost", "lost: GPU_IS_LOST (15)")
    with testing.fake_gpus(made):
        yield made


def test_once_is_a_line_a_device(source, capsys):
    assert cli.main(["monitor", "--once"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "gpu  87 %  mem 8.0/16.0 GiB  pcie in 1.50 out 0.00 GB/s  300/350 W  61 °C  fan 40 %  1755 MHz" in first
    assert first.endswith("[sw_power_cap]  xid 79")
    assert second.endswith("1 Fake GPU  lost: GPU_IS_LOST (15)")


def test_once_json_is_one_line_with_every_device(source, capsys):
    assert cli.main(["monitor", "--once", "--json"]) == 0
    (text,) = capsys.readouterr().out.splitlines()
    line = json.loads(text)
    assert line["schema"] == "gpusense.metrics/1"
    good, lost = (metrics_from_dict(row) for row in line["devices"])
    assert good.power.draw_watts == 300
    assert (lost.state, lost.reason("power.draw_watts")) == ("lost", "lost: GPU_IS_LOST (15)")


@pytest.mark.parametrize("verb", ["monitor", "top"])
def test_a_device_that_the_variable_hides_is_told_as_hidden(source, capsys, monkeypatch, verb):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cli.main([verb, "--once", "--device", "visible"]) == 1
    assert "CUDA_VISIBLE_DEVICES: '' does not show any of the 2 devices of this machine" in " ".join(
        capsys.readouterr().out.split()
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert cli.main([verb, "--once", "--device", "visible", "--device", "1"]) == 0
    assert "GPU_IS_LOST" in capsys.readouterr().out
    assert [one.device.index for one in monitor.snapshot(["visible", 0])] == [0, 1]


@pytest.mark.parametrize("name", ["\x1b]0;evil\x07", "two\nlines", "\ud800", "a\u202eb"])
def test_a_name_is_text_and_nothing_else(capsys, name):
    made = testing.ScriptedSource(devices=[testing.device(0, name=name), testing.device(1, name=name)])
    made.set(0, {"clocks.throttle_reasons": (name,)})
    made.trouble(1, "lost", f"lost: {name}")
    with testing.fake_gpus(made):
        assert cli.main(["monitor", "--once"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)


def test_a_reader_that_stands_still_costs_no_memory(source, monkeypatch, capsys):
    import gpusense.cli.monitor as verb

    samples = 0
    sample = source.sample

    def counted(*arguments):
        nonlocal samples
        samples += 1
        return sample(*arguments)

    def stand_still(text):
        deadline = time.monotonic() + 20
        while samples < 60 and time.monotonic() < deadline:
            time.sleep(0.01)
        raise BrokenPipeError

    source.sample = counted
    monkeypatch.setattr(verb, "_MOST_WAITING", 5)
    monkeypatch.setattr(verb, "_print", stand_still)
    with pytest.raises(BrokenPipeError):
        verb.main(cli.parser_of("monitor").parse_args(["--interval", "0.005"]))
    assert re.search(r"[1-9]\d* samples are not printed: the reader was too slow", capsys.readouterr().err)


def test_ctrl_c_is_how_it_ends(source, monkeypatch, capsys):
    import gpusense.cli.monitor as verb

    def interrupted(text):
        raise KeyboardInterrupt

    monkeypatch.setattr(verb, "_print", interrupted)
    assert cli.main(["monitor", "--interval", "0.005"]) == 0
    assert cli.main(["monitor", "--once"]) == 130  # nothing was printed
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_every_encoding(source, encoding, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    assert cli.main(["monitor", "--once"]) == 0
    assert out.buffer.getvalue().decode(encoding).count("\n") == 2


def test_a_device_can_be_named(source, capsys):
    assert cli.main(["monitor", "--once", "--device", "1"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert cli.main(["monitor", "--once", "--device", "7"]) == 2
    assert "'7' names no device" in capsys.readouterr().err


def test_an_interval_that_makes_no_sense_is_an_error(source, capsys):
    assert cli.main(["monitor", "--interval", "0"]) == 2
    assert "interval must be" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--once"], []])
def test_without_devices_the_reason_is_the_answer(flags, capsys, monkeypatch):
    with testing.fake_gpus(testing.ScriptedSource(0)):
        assert cli.main(["monitor", *flags]) == 1
        assert capsys.readouterr().out.startswith("no device: ")
        assert cli.main(["monitor", *flags, "--json"]) == 1
    line = json.loads(capsys.readouterr().out)
    assert line["devices"] == []
    assert "unavailable" in line


@pytest.mark.parametrize("option", ["--prometheus", "--textfile"])
def test_for_prometheus_it_goes_on_without_a_device_since_one_may_come(capsys, monkeypatch, tmp_path, option):
    """It ended with 1, so that a unit that starts before the driver was gone for good."""
    pages = []

    def once(ended, latest, args, names):
        pages.append(prometheus.text(latest(), names))
        assert not ended.is_set()

    monkeypatch.setattr("gpusense.cli.monitor._write_until", once)
    with testing.fake_gpus(testing.ScriptedSource(0)):
        where = "127.0.0.1:0" if option == "--prometheus" else str(tmp_path / "gpu.prom")
        assert cli.main(["monitor", option, where]) == 0
    assert capsys.readouterr().err.startswith("gpusense monitor: no device yet, so nothing is told of one: ")
    (page,) = pages
    assert [line.partition("{")[0] for line in page.splitlines() if line[0] != "#"] == ["gpusense_build_info"]

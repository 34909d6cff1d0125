"""Device metrics as Prometheus reads them: the text against a strict parser and promtool, the server, the command."""

import contextlib
import http.client
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.machine import ROOT, require

from gpusense import cli, testing
from gpusense._records.metrics import GROUPS, CollectiveTotals, GpuMetrics, without_values
from gpusense._runtime.errors import NotWritten
from gpusense.exporters import prometheus
from gpusense.exporters.prometheus._names import families
from gpusense.exporters.prometheus._text import OPENMETRICS, PLAIN, Family, accepted, written

DEVICE = testing.device(0, name='Fake "GPU"\\\n', nvml_index=3)
SAMPLE = testing.metrics(DEVICE, {
    "utilization.gpu_percent": 87.0, "utilization.sm_active_percent": 25.0, "memory.used_bytes": 8 << 30,
    "memory.total_bytes": 16 << 30, "power.draw_watts": 300.5, "power.energy_joules": 12.5, "thermal.gpu_celsius": 61.0,
    "clocks.sm_mhz": 1980.0, "pcie.rx_bytes_per_s": 1.5e9, "pcie.replay_count": 3, "health.ecc_corrected": 4,
})  # fmt: skip


def values(page, strictly=None):
    """(sample, labels) → value, read by a parser that is not ours, and that ends every counter in _total."""
    require(importlib.util.find_spec("prometheus_client"), "prometheus_client")
    from prometheus_client import parser
    from prometheus_client.openmetrics import parser as openmetrics

    if strictly is None:
        strictly = page.endswith("# EOF\n")
    read = openmetrics.text_string_to_metric_families if strictly else parser.text_string_to_metric_families
    found = {}
    for family in read(page):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, "twice"
            found[key] = sample.value
    return found


def named(page, name):
    return [(dict(labels), value) for (sample, labels), value in values(page).items() if sample == name]


# --- the text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [False, True], ids=["text", "openmetrics"])
def test_our_names_carry_their_units(form):
    page = prometheus.text([SAMPLE], openmetrics=form)
    labels, busy = named(page, "hw_gpu_utilization_ratio")[0]
    assert busy == 0.87
    assert labels == {
        "hw_id": DEVICE.uuid, "hw_name": DEVICE.name, "hw_vendor": "nvidia", "hw_gpu_task": "general"
    }  # fmt: skip
    found = {name: value for (name, _), value in values(page).items()}
    assert found["hw_gpu_memory_usage_bytes"] == 8 << 30
    assert found["hw_gpu_memory_utilization_ratio"] == 0.5
    assert found["hw_temperature_celsius"] == 61
    assert found["hw_power_watts"] == 300.5
    assert found["hw_energy_joules_total"] == 12.5
    assert found["gpu_clock_frequency_hertz"] == 1.98e9
    assert found["gpu_pcie_rate_bytes_per_second"] == 1.5e9
    assert found["gpu_unit_activity_ratio"] == 0.25
    assert {dict(labels)["error_type"]: value for labels, value in named(page, "hw_errors_total")} == {
        "corrected": 4, "pcie_replay": 3
    }  # fmt: skip
    assert "# TYPE hw_power_watts gauge\n" in page
    assert f"# TYPE hw_energy_joules{'' if form else '_total'} counter\n" in page


def test_collectives_of_this_process_are_there_under_our_names():
    rows = [CollectiveTotals("AllReduce", "ab", None, 1, 8, 40, 1 << 30, 40, 2_500_000_000, 3e9, 31_000_000_000)]
    page = prometheus.text([SAMPLE], collectives=rows)
    labels, count = named(page, "gpu_collective_count_total")[0]
    assert (count, labels["gpu_collective_name"], labels["gpu_communicator_size"]) == (40, "AllReduce", "8")
    found = {name: value for (name, _), value in values(page).items()}
    assert found["gpu_collective_io_bytes_total"] == 1 << 30
    assert found["gpu_collective_time_seconds_total"] == 2.5
    assert found["gpu_collective_bus_bandwidth_bytes_per_second"] == 3e9
    assert found["gpu_collective_waiting_time_seconds"] == 31
    assert prometheus.text([SAMPLE], "dcgm", collectives=rows) == prometheus.text([SAMPLE], "dcgm")


@pytest.mark.parametrize("form", [False, True], ids=["text", "openmetrics"])
def test_dcgms_names_have_dcgms_units_and_labels(form):
    page = prometheus.text([SAMPLE], "dcgm", openmetrics=form)
    labels, watts = named(page, "DCGM_FI_DEV_POWER_USAGE")[0]
    assert watts == 300.5
    assert labels["UUID"] == DEVICE.uuid
    assert (labels["gpu"], labels["device"], labels["modelName"]) == ("3", "nvidia3", DEVICE.name)
    assert labels["pci_bus_id"] == "00000000:01:00.0"
    found = {name: value for (name, _), value in values(page).items()}
    assert found["DCGM_FI_DEV_GPU_UTIL"] == 87
    assert found["DCGM_FI_DEV_FB_USED"] == 8192
    assert found[f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{'' if form else '_total'}"] == 12_500
    assert found["DCGM_FI_PROF_SM_ACTIVE"] == 0.25
    assert not any(name.startswith(("hw_", "gpu_")) for name in found)


@pytest.mark.parametrize("names", prometheus.NAMES)
def test_what_is_unknown_has_no_line(names):
    nothing = GpuMetrics(DEVICE, 1, 1)
    shown = {name for name, _ in values(prometheus.text([nothing], names))}
    assert shown <= {"gpusense_build_info", "hw_status"}
    one = testing.metrics(DEVICE, {"utilization.gpu_percent": 0.0})
    (busy,) = [value for (name, _), value in values(prometheus.text([one], names)).items() if "util" in name.lower()]
    assert busy == 0  # known to be nothing


@pytest.mark.parametrize("names", prometheus.NAMES)
def test_a_device_that_answers_no_more_disappears(names):
    stale = without_values(SAMPLE, "degraded", "stale: no sample for 9 s")
    other = testing.metrics(testing.device(1), {"power.draw_watts": 1.0})
    page = prometheus.text([stale, other], names)
    shown = {name for name, labels in values(page) if DEVICE.uuid in dict(labels).values()}
    assert shown <= {"hw_status"}
    if names == "gpusense":
        state = {
            labels["hw_state"]: value for labels, value in named(page, "hw_status") if labels["hw_id"] == DEVICE.uuid
        }
        assert state == {"ok": 0, "degraded": 1, "failed": 0, "predicted_failure": 0}


def test_every_field_that_is_named_exists_and_names_are_unlike():
    full = GpuMetrics(DEVICE, 1, 1)._replace(**{
        group: type(empty)(*(1.0 for _ in empty)) for group, empty in GROUPS.items()
    })  # fmt: skip
    for names, metrics in prometheus.NAMES.items():
        assert len({metric.name for metric in metrics}) == len(metrics)
        assert all(family.rows for family in families([full], names)), names
        assert all(family.help and not family.help.endswith(".") for family in families([full], names))


def test_other_names_are_refused():
    with pytest.raises(ValueError, match="gpusense, dcgm"):
        prometheus.text([], "rocm")
    with pytest.raises(ValueError, match="gpusense, dcgm"):
        prometheus.serve(tuple, port=0, names="rocm")


ODD = ("\\n", '\\"', "\\", "\\\\\n", '"', "\ud800", "\r\n", "\x00", "{}=,# EOF")
ANY_TEXT = st.text(st.characters(), max_size=12) | st.sampled_from(ODD)
ANY_NUMBER = st.floats(allow_nan=False) | st.integers(-(2**70), 2**70)


@settings(max_examples=60)
@given(help_text=ANY_TEXT, label=ANY_TEXT, value=ANY_NUMBER, form=st.sampled_from([PLAIN, OPENMETRICS]))
def test_any_text_is_read_back_as_it_was(help_text, label, value, form):
    page = written([Family("a_bytes", "gauge", "bytes", help_text, [({"l": label, "m": "x"}, value)])], form)
    page.encode()  # there is nothing in it that cannot be sent
    shown = label.encode("utf-8", "backslashreplace").decode()
    ((name, labels), found), *more = values(page, form.openmetrics).items()
    assert (name, dict(labels), more) == ("a_bytes", {"l": shown, "m": "x"}, [])
    assert float(found) == float(value)
    assert page.count("\n") == (3 if form is PLAIN else 5)


def test_the_page_ends_as_the_format_wants():
    assert prometheus.text([]).startswith("# HELP gpusense_build_info ")
    assert written([], PLAIN) == ""
    assert written([], OPENMETRICS) == "# EOF\n"
    assert written([Family("a", "gauge", "", "no rows", [])], PLAIN) == ""


@pytest.mark.parametrize(
    ("header", "form"),
    [
        ("", PLAIN),
        ("*/*", PLAIN),
        ("text/plain", PLAIN),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", OPENMETRICS),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", OPENMETRICS),
        ("application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", PLAIN),
        ("text/plain;q=0.9, application/openmetrics-text;q=0.5", PLAIN),
        ("application/openmetrics-text;q=0", PLAIN),
        ("application/openmetrics-text;q=rubbish", PLAIN),
    ],
)
def test_the_format_is_the_one_that_is_asked_for(header, form):
    assert accepted(header) is form


@pytest.mark.parametrize("names", prometheus.NAMES)
def test_promtool_has_nothing_to_say(names):
    require(shutil.which("promtool"), "promtool (Debian's package prometheus)")
    page = prometheus.text([SAMPLE, testing.metrics(testing.device(1), {"power.draw_watts": 1.0})], names)
    done = subprocess.run(["promtool", "check", "metrics"], input=page.encode(), capture_output=True, timeout=60)
    said = [
        line for line in done.stdout.decode().splitlines() + done.stderr.decode().splitlines() if "DCGM" not in line
    ]
    assert (said, done.returncode if names == "gpusense" else 0) == ([], 0)


# --- the server -------------------------------------------------------------------------------------------------------


def get(port, path="/metrics", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def test_the_server_answers_metrics_and_nothing_else():
    with prometheus.serve(lambda: [SAMPLE], port=0) as server:
        assert server.url == f"http://127.0.0.1:{server.port}/metrics"
        status, headers, body = get(server.port)
        assert (status, headers["Content-Type"]) == (200, PLAIN.content_type)
        assert body == prometheus.text([SAMPLE])
        status, headers, body = get(server.port, "/metrics?a=b", Accept=OPENMETRICS.content_type)
        assert (headers["Content-Type"], body) == (
            OPENMETRICS.content_type,
            prometheus.text([SAMPLE], openmetrics=True),
        )
        status, headers, body = get(server.port, method="HEAD")
        assert (status, int(headers["Content-Length"]), body) == (200, len(prometheus.text([SAMPLE]).encode()), "")
        for path in ("/", "/metrics/", "/metricsx", "/../metrics"):
            assert get(server.port, path)[0] == 404, path
        assert get(server.port, "/", method="HEAD")[::2] == (404, "")
        assert get(server.port, method="POST")[0] == 501
    with pytest.raises(ConnectionError):
        get(server.port)
    server.stop()  # again


def test_it_listens_to_this_machine_alone_and_says_where_it_cannot():
    with prometheus.serve(list, port=0) as server:
        assert server._server.server_address[0] == "127.0.0.1"
        with pytest.raises(OSError, match="in use"):
            prometheus.serve(list, port=server.port)


def test_one_scrape_waits_for_no_other_and_a_bad_one_costs_itself(caplog):
    inside, go_on = threading.Semaphore(0), threading.Event()

    def latest():
        inside.release()
        assert go_on.wait(10)
        return [SAMPLE]

    with prometheus.serve(latest, port=0) as server, socket.create_connection(("127.0.0.1", server.port)) as silent:
        silent.send(b"GET /met")  # and no more
        found = []
        scrapes = [threading.Thread(target=lambda: found.append(get(server.port)[0])) for _ in range(8)]
        for scrape in scrapes:
            scrape.start()
        assert all(inside.acquire(timeout=10) for _ in scrapes)  # all are at it at once
        go_on.set()
        for scrape in scrapes:
            scrape.join(10)
    assert found == [200] * 8
    assert not caplog.records


def test_an_odd_value_costs_its_row_only(caplog):
    odd = SAMPLE._replace(utilization=SAMPLE.utilization._replace(gpu_percent="?"))
    other = testing.metrics(testing.device(1), {"power.draw_watts": 1.0})
    found = {name for name, _ in values(prometheus.text([odd, other]))}
    assert "hw_power_watts" in found
    assert "hw_gpu_utilization_ratio" not in found


# --- the file ---------------------------------------------------------------------------------------------------------


def test_the_file_is_whole_whenever_it_is_read(tmp_path):
    path, pages, over = tmp_path / "gpu.prom", set(), threading.Event()
    prometheus.write_textfile(path, [SAMPLE])
    many = [testing.metrics(testing.device(number), {"power.draw_watts": 1.0}) for number in range(50)]

    def read():
        while not over.is_set():
            pages.add(path.read_text("utf-8"))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(10):
        prometheus.write_textfile(path, many, "dcgm")
        prometheus.write_textfile(path, [SAMPLE])
    over.set()
    reader.join()
    assert pages <= {prometheus.text([SAMPLE]), prometheus.text(many, "dcgm")}
    assert os.listdir(tmp_path) == ["gpu.prom"]
    assert path.stat().st_mode & 0o444 == 0o444 & ~_umask()
    with pytest.raises(NotWritten, match="no folder"):
        prometheus.write_textfile(tmp_path / "absent" / "gpu.prom", [])


def _umask():
    before = os.umask(0)
    os.umask(before)
    return before


# --- the command ------------------------------------------------------------------------------------------------------

RUN = """
import sys
from gpusense import cli, testing
source = testing.ScriptedSource(2)
source.set(0, {"power.draw_watts": 300.0})
with testing.fake_gpus(source):
    sys.exit(cli.main(["monitor", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_and_writes_until_it_is_ended(tmp_path, end):
    path = tmp_path / "gpu.prom"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GPUSENSE")}
    program = subprocess.Popen(
        [sys.executable, "-c", RUN, "--prometheus", ":0", "--textfile", str(path), "--interval", "0.02"],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        said = program.stderr.readline()
        assert said.startswith("gpusense monitor: serving http://127.0.0.1:")
        port = int(said.rpartition(":")[2].partition("/")[0])
        deadline = time.monotonic() + 20
        while not (named(get(port)[2], "hw_power_watts") and path.exists()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert 300.0 in [value for _, value in named(get(port)[2], "hw_power_watts")]
        assert "hw_status" in path.read_text("utf-8")
        program.send_signal(end)
        assert program.communicate(timeout=20) == ("", "")
        assert program.returncode == 0
        assert os.listdir(tmp_path) == []  # what was measured last is not read for ever
    finally:
        program.kill()
        program.wait()


def test_one_file_from_the_command(tmp_path, capsys):
    source = testing.ScriptedSource(1)
    source.set(0, {"power.draw_watts": 300.0})
    path = tmp_path / "gpu.prom"
    with testing.fake_gpus(source):
        assert cli.main(["monitor", "--once", "--textfile", str(path), "--names", "dcgm"]) == 0
    assert named(path.read_text("utf-8"), "DCGM_FI_DEV_POWER_USAGE")[0][1] == 300
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--prometheus", ":0", "--once"], "go without --once"),
        (["--textfile", "x.prom", "--json"], "go without --json"),
        (["--names", "dcgm"], "--names says what"),
        (["--textfile", "absent/x.prom", "--interval", "0.01"], "no folder"),
        (["--prometheus", "240.0.0.1:9400"], "cannot listen on 240.0.0.1:9400"),
        (["--prometheus", "here"], "is not an address"),
        (["--prometheus", ":70000"], "is not an address"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, monkeypatch, capsys, words, why):
    monkeypatch.chdir(tmp_path)
    with testing.fake_gpus(testing.ScriptedSource(1)), contextlib.suppress(SystemExit):
        assert cli.main(["monitor", *words]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (":9400", ("127.0.0.1", 9400)),
        ("9400", ("127.0.0.1", 9400)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:7", ("::1", 7)),
    ],
)
def test_addresses(text, found):
    from gpusense.cli._arguments import address

    assert address(text) == found

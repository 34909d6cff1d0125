"""``kernels="blocks"`` from the setting to summaries, reports and spans. The driver goes by the machine's clock."""

import io
import json
import time
from time import monotonic_ns

import pytest
from support.control import begun

import gpusense
from gpusense import doctor
from gpusense._records.records import BLOCK_TIMES
from gpusense.analysis.findings import verdict
from gpusense.backends.block_times import marks
from gpusense.exporters.opentelemetry._inside import OfSession, OfTracer
from gpusense.report import json as json_report
from gpusense.report import text
from gpusense.report.html.page import write as write_page

MS = 1_000_000
#: Nothing may say that there was no work.
NEVER = ("no GPU work", "No GPU work", "0 kernels", "no kernel")


@pytest.fixture
def tracer(driver, no_library, monkeypatch):
    monkeypatch.setattr(marks, "monotonic_ns", monotonic_ns)
    monkeypatch.setattr(marks, "APART_NS", 0.0)
    driver.set_mark(0)
    driver.library.fake_cuda_real_time()
    control = begun(monkeypatch, lambda: None)
    gpusense.configure(kernels="blocks", mode="on")
    yield gpusense.get_tracer()
    control.live.close()


def steps(driver, count=5, ahead=20 * MS):
    driver.work(0, ahead)  # the host is ahead of the device, or it is not
    for _ in range(count):
        with gpusense.trace("step") as step:
            with gpusense.trace("forward"):
                driver.work(0, 2 * MS)
            with gpusense.trace("backward"):
                driver.work(0, 4 * MS)
    return step


def test_a_block_says_its_time_on_the_device_and_that_kernels_are_unknown(driver, tracer):
    summary = steps(driver).summary()
    assert (summary.device_ns, summary.device_at_most, summary.complete) == (6 * MS, False, True)
    assert (summary.gpu_ns, summary.kernel_count, summary.operations) == (None, None, ())
    assert str(summary).splitlines()[1] == "  Block times; kernels not recorded."
    assert "6.00 ms on the device" in str(summary)
    assert tracer.status()["state"] == "blocks"
    assert tracer.status()["reason"] == BLOCK_TIMES


def test_a_bound_is_called_one(driver, tracer):
    with gpusense.trace("alone") as block:
        driver.work(0, MS)
    assert block.summary().device_at_most
    assert "at most" in str(block.summary())


def test_a_block_that_the_device_did_not_time_says_why(driver, tracer):
    with gpusense.trace("first"):
        pass
    driver.capturing(0, True)
    with gpusense.trace("captured") as block:
        pass
    driver.capturing(0, False)
    summary = block.summary()
    assert (summary.device_ns, summary.complete) == (None, False)
    assert "a CUDA graph was being captured" in str(summary)


def test_before_the_program_uses_cuda_it_is_not_said_that_blocks_are_timed(driver, no_library, monkeypatch):
    driver.library.fake_cuda_set_live(0)
    control = begun(monkeypatch, lambda: None)
    gpusense.configure(kernels="blocks", mode="on")
    with gpusense.trace("on the host"):
        pass
    tracer = gpusense.get_tracer()
    assert tracer.status()["state"] == "armed"
    session = tracer.session()
    assert verdict(session).title.startswith("No GPU work was seen: the program has not used CUDA")
    control.live.close()
    driver.library.fake_cuda_set_live(1)


def test_reports_have_the_times_and_never_say_that_there_was_no_work(driver, tracer, tmp_path):
    steps(driver)
    session = tracer.session()
    found = verdict(session)
    assert found.kind == "block_times"
    assert found.title == "Most of the device's time is in block step › backward: 4.00 ms a pass on the device."
    assert "--light" in found.fix
    summary = text.summary(session)
    assert len([line for line in summary if line.endswith("  step")]) == 1
    lines = [*summary, *text.full(session)]
    assert any("30.0 ms  step" in line for line in lines)
    assert any(BLOCK_TIMES in line for line in lines)
    out = io.StringIO()
    tracer.print_summary(file=out)
    page = tmp_path / "page.html"
    write_page(session, page)
    for shown in ("\n".join(lines), out.getvalue(), page.read_text("utf-8")):
        assert not [word for word in NEVER if word in shown]
    report = json.loads("".join(json_report.pieces(session)))
    (row,) = [row for row in report["analysis"]["block_tree"] if row["path"] == ["step", "backward"]]
    assert (row["device_ns"], row["device_passes"], row["device_at_most"]) == (20 * MS, 5, 0)
    assert (row["kernels"], row["kernel_ns"], row["gpu_ns"]) == (None, None, None)
    (row,) = [row for row in tracer.summary().operations if row.path == ("step", "backward")]
    assert (row.device_ns, row.device_count, row.gpu_ns) == (20 * MS, 5, None)
    assert dict(row.reasons)["gpu_ns"] == BLOCK_TIMES


def test_a_device_that_waits_for_the_host_is_found(driver, tracer):
    for _ in range(3):
        with gpusense.trace("step"):
            driver.work(0, MS)
            time.sleep(0.003)
    found = verdict(tracer.session())
    assert found.title == (
        "The device had nothing to do as block step began or ended, in 3 of 3 passes: it waited for the host."
    )


def test_where_the_device_is_in_a_block_for_a_part_of_its_time_the_host_is_slower(driver, tracer):
    driver.work(0, 30 * MS)
    for _ in range(3):
        with gpusense.trace("step"):
            driver.work(0, MS)
            time.sleep(0.005)
    found = verdict(tracer.session())
    assert found.title.startswith("The device was in block step for ")
    assert found.title.endswith(" of its time: the host is slower.")


def test_spans_have_the_time_of_their_block(driver, tracer):
    of_tracer, blocks = OfTracer(lambda: tracer), []
    driver.work(0, 200 * MS)  # the host is ahead, however busy the machine is
    with gpusense.trace("step") as step:
        of_tracer.watch(step)
        driver.work(0, 3 * MS)
    blocks.append(step)
    wanted, end = {"gpu.block.device_ns": 3 * MS, "gpu.block.at_most": False}, time.monotonic() + 20
    while not of_tracer.of(step.block_id, None, step).attributes() and time.monotonic() < end:
        tracer.flush(1)
    assert of_tracer.of(step.block_id, None, step).attributes() == wanted
    assert OfSession(tracer.session()).of(step.block_id).attributes() == wanted


def test_a_session_file_has_them_and_the_setting_is_fixed_while_recording(
    driver, no_library, monkeypatch, tmp_path, caplog
):
    driver.library.fake_cuda_real_time()
    control = begun(monkeypatch, lambda: None)
    path = tmp_path / "run.gpusense"
    run = control.start_session(mode="file", path=str(path), kernels="blocks")
    steps(driver, ahead=0)
    assert gpusense.configure(kernels="every", threshold_us=7).kernels == run.tracer.config.kernels == "blocks"
    assert run.tracer.config.threshold_us == 7
    run.finish()
    session = gpusense.load(path)
    assert sum(type(record) is gpusense.GpuBlockTime for record in session.records) == 15
    assert session.meta["capture"]["state"] == "blocks"
    assert session.meta["sources"]["block_times"]["timed"] == 15
    assert session.counters.seen == 30
    assert "kernels='every' takes effect with the next one" in caplog.text


def test_doctor_says_whether_it_would_work_and_whether_it_is_asked_for(driver, monkeypatch):
    begun(monkeypatch)
    (row,) = [row for row in doctor.levels(doctor.backends()) if row.name == "block times"]
    assert row.available
    assert "--light" in row.reason
    monkeypatch.setenv("GPUSENSE_KERNELS", "blocks")
    (row,) = [row for row in doctor.levels(doctor.backends()) if row.name == "block times"]
    assert row.reason.startswith("kernels='blocks'")

"""The monitor and the process it lives in: exit, fork, signals, hangs, closed pipes. Each case in a child."""

import os
import signal
import subprocess
import sys
import time

import pytest
from support.machine import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is a Linux library")

START = """
import os, sys, time, threading
from gpusense import monitor
"""


@pytest.fixture
def nvml(build_library):
    return str(build_library("libnvidia_ml.c", "libnvidia-ml.so.1"))


@pytest.fixture
def child(run_python, nvml):
    def run(code: str, script: str = "", **more):
        done = run_python(START + code, GPUSENSE_LIBNVIDIA_ML=nvml, FAKE_NVML=script, timeout=30, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return run


def test_a_program_may_end_while_a_monitor_runs(child):
    assert child(
        "running = monitor.start_background(lambda s: None, interval=0.01); time.sleep(0.1); print('end')"
    ) == ["end"]


def test_a_program_may_end_while_a_driver_call_is_under_way(child):
    """Shutting the library down under a running query crashed another monitor at exit."""
    start = time.monotonic()
    out = child(
        "running = monitor.start_background(interval=0.01); time.sleep(0.3); print('end')",
        "slow=nvmlDeviceGetTotalEnergyConsumption:20000 slow=nvmlDeviceGetUtilizationRates:20000",
    )
    assert out == ["end"]
    assert time.monotonic() - start < 15


def test_a_lost_device_in_the_thread_does_not_hang_the_exit(child):
    code = "r = monitor.start_background(interval=0.01); time.sleep(0.5); print(r.latest()[0].state)"
    assert child(code, "code=nvmlDeviceGetUtilizationRates:-1:3:15") == ["lost"]


def test_a_driver_that_hangs_in_init_does_not_hold_the_program(child):
    code = """
before = time.monotonic()
running = monitor.start_background(interval=0.01, open_timeout=0.2)
print(time.monotonic() - before < 30, running.devices, running.problem)
print(monitor.snapshot(timeout=0.1))
"""
    out = " ".join(child(code, "slow=nvmlInit_v2:60000"))
    assert out == "True () nvml has not answered yet ()"


def test_a_driver_that_answers_late_is_sampled_then(child):
    code = """
running = monitor.start_background(interval=0.01, open_timeout=0.05)
print(bool(running.problem))
deadline = time.monotonic() + 20
while not running.history() and time.monotonic() < deadline: time.sleep(0.01)
print(running.problem, running.latest()[0].state)
"""
    assert child(code, "slow=nvmlInit_v2:400") == ["True", "None", "ok"]


def test_a_broken_installation_leaves_the_program_alive_and_says_what_to_do(child):
    code = "print(monitor.snapshot(), [s.hint for s in monitor.sources() if s.what == 'nvml'][0])"
    out = " ".join(child(code.replace("s.what", "getattr(s, 'what', '')"), "code=nvmlInit_v2:-1:0:18"))
    assert out.startswith("() driver and library differ in version")


def test_a_forked_child_has_no_monitor_and_may_start_its_own(child):
    code = """
running = monitor.start_background(interval=0.01)
time.sleep(0.1)
pid = os.fork()
if pid == 0:
    own = len(running.history())
    print(running.running, running.problem is not None, own > 0, monitor.current(), flush=True)
    with monitor.start_background(interval=0.01) as second:
        time.sleep(0.2)
        print(second.latest()[0].state, len(monitor.snapshot()), flush=True)
    import ctypes
    fake = ctypes.CDLL(os.environ["GPUSENSE_LIBNVIDIA_ML"])
    print(fake.fake_calls(b"nvmlInit_v2"), fake.fake_calls(b"nvmlShutdown"), flush=True)
    os._exit(0)
print(os.waitpid(pid, 0)[1], flush=True)
before = len(running.history())
time.sleep(0.1)
print(len(running.history()) > before, flush=True)
"""
    assert child(code) == ["False", "True", "True", "None", "ok", "1", "2", "0", "0", "True"]


def test_a_fork_while_the_driver_is_being_initialised_does_not_deadlock_the_child(child):
    """Nobody in the child gives back the lock that the parent's thread held."""
    code = """
import ctypes
fake = ctypes.CDLL(os.environ["GPUSENSE_LIBNVIDIA_ML"])
monitor.start_background(interval=0.01, open_timeout=0.05)
while not fake.fake_calls(b"nvmlInit_v2"): time.sleep(0.005)
pid = os.fork()
if pid == 0:
    with monitor.start_background(interval=0.01, open_timeout=10) as own:
        print(own.problem, len(own.devices), len(monitor.snapshot(timeout=10)), flush=True)
    os._exit(0)
print(os.waitpid(pid, 0)[1])
"""
    assert child(code, "slow=nvmlInit_v2:1000") == ["None", "1", "1", "0"]


SIGNALLED = """
import collections, faulthandler, signal
from gpusense import testing
from gpusense.monitor._sampler import DeviceSampler
faulthandler.dump_traceback_later(15, exit=True)
source = testing.ScriptedSource(1)
source.set(0, {"utilization.gpu_percent": 1.0})
running = monitor.start_background(source=source, interval=0.01)
while len(running.history()) < 3: time.sleep(0.01)
asked = []
def handler(*_):
    asked.append(len(running.latest()) + len(running.history()))
    running.stop()
signal.signal(signal.SIGUSR1, handler)
"""


def test_a_signal_handler_may_ask_and_stop_a_monitor_that_is_being_asked(child):
    """The lock was held by the very thread that ran the handler."""
    code = """
class Signalling(collections.deque):
    def __iter__(self):
        if not raised:
            raised.append(running._lock._is_owned())
            signal.raise_signal(signal.SIGUSR1)
        return super().__iter__()
raised = []
with running._lock:
    (key,) = running._samples
    running._samples[key] = Signalling(running._samples[key], 600)
print(len(running.history(seconds=60)) >= 3, asked[0] >= 4, running.running, raised)
"""
    assert child(SIGNALLED + code) == ["True", "True", "False", "[True]"]


@pytest.mark.parametrize("place", ["monitor._sources.merged", "backends.nvml.source.describe"])
def test_a_signal_handler_may_take_a_snapshot_in_the_middle_of_one(child, place):
    module, name = place.rsplit(".", 1)
    code = f"""
import faulthandler, signal
from gpusense.monitor import _sources
from gpusense.backends.nvml import source as nvml
import gpusense.{module} as module
faulthandler.dump_traceback_later(15, exit=True)
monitor.snapshot()
for source in nvml._sources.values(): source._devices = None
got, before = [], module.{name}
signal.signal(signal.SIGUSR1, lambda *_: got.append(len(monitor.snapshot())))
def interrupted(*arguments):
    module.{name} = before
    signal.raise_signal(signal.SIGUSR1)
    return before(*arguments)
module.{name} = interrupted
print(len(monitor.snapshot()), got)
"""
    assert child(code) == ["1", "[1]"]


def test_a_signal_handler_may_stop_a_monitor_that_is_being_started(child):
    code = """
before = DeviceSampler.attach
def attach(sampler, listener):
    before(sampler, listener)
    global running
    running = listener
    signal.raise_signal(signal.SIGUSR1)
DeviceSampler.attach = attach
running.stop()
second = monitor.start_background(source=source, interval=0.01)
print(second is running, second.running, monitor.shared.samplers)
while any(thread.name.startswith("gpusense-") for thread in threading.enumerate()): time.sleep(0.01)
print("ended")
"""
    assert child(SIGNALLED + code) == ["True", "False", "{}", "ended"]


def test_a_fork_while_a_lock_is_held_does_not_deadlock_the_child(child):
    code = """
running = monitor.start_background(lambda s: None, interval=0.005)
for _ in range(20):
    time.sleep(0.01)
    pid = os.fork()
    if pid == 0:
        running.stop(); running.latest(); monitor.snapshot()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
print('end')
"""
    assert child(code) == ["end"]


def test_a_multiprocessing_child_ends(child):
    code = """
import multiprocessing
def work(queue): queue.put(len(monitor.snapshot()))
running = monitor.start_background(interval=0.01)
context = multiprocessing.get_context('fork')
queue = context.SimpleQueue()
process = context.Process(target=work, args=(queue,))
process.start(); print(queue.get()); process.join(20); print(process.exitcode)
"""
    assert child(code) == ["1", "0"]


def test_stop_returns_while_the_driver_hangs(child):
    code = """
running = monitor.start_background(interval=0.01)
time.sleep(0.3)
before = time.monotonic()
running.stop(timeout=0.2)
print(time.monotonic() - before < 20)
"""
    assert child(code, "slow=nvmlDeviceGetUtilizationRates:60000") == ["True"]


def test_long_running_keeps_memory_descriptors_and_threads_flat(child):
    code = """
from gpusense.backends.nvml import source as nvml
from gpusense.monitor._sampler import DeviceSampler, Clock
source = nvml.open().metrics
(device,) = source.devices()
def usage():
    with open('/proc/self/statm') as file: pages = int(file.read().split()[1])
    return pages * 4, len(os.listdir('/proc/self/fd')), threading.active_count()
for _ in range(1500): source.sample(device, ('fast', 'gpm')); source.sample(device, ('medium', 'slow'))
first = usage()
for _ in range(8000): source.sample(device, ('fast', 'gpm'))
for _ in range(1500): source.sample(device, ('medium', 'slow'))
second = usage()
print(second[0] - first[0] < 1024, second[1] - first[1], second[2] - first[2])
"""
    assert child(code, "value=process/rows:-1:3") == ["True", "0", "0"]


def test_starting_and_stopping_many_monitors_leaves_no_thread(child):
    code = """
for _ in range(50):
    with monitor.start_background(lambda s: None, interval=0.005): pass
time.sleep(0.3)
deadline = time.monotonic() + 10
while threading.active_count() > 1 and time.monotonic() < deadline: time.sleep(0.05)
print(threading.active_count(), len(monitor.shared.samplers))
"""
    assert child(code) == ["1", "0"]


def test_importing_the_monitor_loads_no_driver(child):
    code = "print('nvidia-ml' in open('/proc/self/maps').read(), 'gpusense.backends.nvml.source' in sys.modules)"
    assert child(code) == ["False", "False"]


# -- the command ---------------------------------------------------------------------------------------------------


def command(nvml: str, *arguments: str) -> subprocess.Popen:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GPUSENSE")}
    environ |= {"GPUSENSE_LIBNVIDIA_ML": nvml, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "gpusense", "monitor", "--interval", "0.05", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ,
    )  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 0)])
def test_the_command_ends_cleanly_on_a_signal(nvml, number, code):
    with command(nvml, "--json") as process:
        assert process.stdout.readline().startswith("{")
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (code, "")


def test_the_command_ends_quietly_when_its_reader_leaves(nvml):
    with command(nvml) as process:
        assert "NVIDIA H100" in process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=20) == 141
        assert process.stderr.read() == ""

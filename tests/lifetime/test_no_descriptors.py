"""A program without a free file descriptor: the first use raises nothing and a later one works, and it ends as it would
without gpusense."""

import sys

import pytest
from support.programs import clean

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")

_USES = """
def traced():
    with gpusense.trace("request", {"a": 1}): pass
    @gpusense.trace("decorated")
    def function(): return 5
    assert function() == 5
def timed():
    with gpusense.compute_block("c"): pass
def asked():
    with gpusense.trace("asked") as block: pass
    block.wait(0.1)
USES = {
    "trace": traced,
    "compute_block": timed,
    "summary": asked,
    "record_kernel": lambda: gpusense.record_kernel("k", duration_ns=5),
    "record_transfer": lambda: gpusense.record_transfer("t", "cpu_to_gpu", 5, duration_ns=5),
    "record_compute_block": lambda: gpusense.record_compute_block("c", duration_ns=5),
    "devices": gpusense.devices,
    "own_usage": gpusense.own_usage,
    "get_tracer": lambda: gpusense.get_tracer().status(),
    "enable": gpusense.enable,
    "disable": gpusense.disable,
    "detach": gpusense.detach,
    "reset": gpusense.reset,
}
"""


@pytest.mark.parametrize("mode", ["auto", "on", "off"])
def test_the_first_use_raises_nothing_and_a_later_one_works(run_python, mode):
    code = (
        """
import os, sys
import gpusense
"""
        + _USES
        + """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for name, use in USES.items():
    child = os.fork()  # so that each is the first use
    if child:
        _, status = os.waitpid(child, 0)
        if status: print(name, status)
        continue
    held = []
    try:
        while True: held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError: pass
    use()
    for descriptor in held: os.close(descriptor)
    with gpusense.trace("later"): pass
    if sys.argv[1] == "on" and name != "disable":
        assert gpusense.get_tracer().active, name
        with gpusense.trace("recorded"): pass
        assert "recorded" in {block.name for block in gpusense.get_tracer().session().blocks}
    sys.stderr.flush()
    os._exit(0)
print("done")
"""
    )
    clean(run_python(code, mode, GPUSENSE=mode), "done\n")


LEAKS = """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    while True: os.open("/dev/null", os.O_RDONLY)
except OSError: pass
print("done")
"""


@pytest.mark.parametrize(
    "use",
    [
        'import gpusense\nwith gpusense.trace("a"): pass',
        "import gpusense\ngpusense.get_tracer().add_sink(lambda records: None)\nwith gpusense.trace('a'): pass",
        "from gpusense import monitor\nmonitor.start_background(lambda sample: None)",
    ],
    ids=["trace", "sink", "monitor"],
)
def test_no_thread_is_left_for_the_interpreter_to_stop(run_python, use):
    """It does so by glibc's pthread_exit, which opens a library the first time, and aborts where it cannot."""
    seen = """
import atexit, os, threading
def look(): os.write(1, repr([thread.name for thread in threading.enumerate()]).encode())
atexit.register(look)  # first, so that it runs last
"""
    clean(run_python(seen + use + LEAKS, GPUSENSE="on"), "done\n['MainThread']")

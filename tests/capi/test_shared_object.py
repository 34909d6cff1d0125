"""The shared object that CUDA loads when it starts: assembled anew, and loaded by programs with and without Python."""

import ctypes
import platform
import subprocess
import sys

import pytest
from support.machine import assembled, require

from gpusense._capi.machine import shared_object, start_code

NATIVE = platform.machine() if sys.platform == "linux" else None
native = pytest.mark.skipif(NATIVE not in start_code.CODES, reason="there is no code for this processor and system")


@pytest.mark.parametrize("machine", start_code.CODES)
def test_the_bytes_are_what_the_source_assembles_to(machine, tmp_path):
    text, symbols = assembled(machine, start_code.CODES[machine].assembly, tmp_path)
    assert text == start_code.CODES[machine].machine
    assert {name: symbols[name] for name in ("begin", "DATA", "SCRIPT")} == {
        "begin": 0, "DATA": start_code.DATA, "SCRIPT": start_code.SCRIPT,
    }  # fmt: skip
    assert len(text) <= start_code.SCRIPT


@pytest.mark.parametrize("machine", start_code.CODES)
def test_tools_read_it_as_a_library(machine, tmp_path):
    import shutil

    readelf = shutil.which("readelf")
    require(readelf, "readelf")
    path = tmp_path / "start.so"
    path.write_bytes(shared_object.start_object(machine, "pass", "/tmp/note-XXXXXX"))
    shown = subprocess.run(
        [readelf, "-W", "-D", "-s", "-r", path], capture_output=True, text=True, check=True, timeout=60
    )
    assert "InitializeInjection" in shown.stdout
    assert shown.stdout.count(" WEAK ") == len(start_code.SYMBOLS)
    assert shown.stdout.count("GLOB_DAT") == len(start_code.SYMBOLS)
    assert shown.stderr == ""


def test_what_does_not_fit_is_refused():
    assert shared_object.start_object("m68k", "pass", "/tmp/note-XXXXXX") is None
    fits = "#" * shared_object.MOST_SCRIPT_BYTES
    assert shared_object.start_object("x86_64", fits, "/tmp/note-XXXXXX") is not None
    for script, note in ((f"{fits}#", "/tmp/n"), ("pass", "n" * (shared_object.MOST_NOTE_BYTES + 1)), ("\0", "n")):
        with pytest.raises(ValueError, match="too long"):
            shared_object.start_object("x86_64", script, note)


@pytest.fixture
def library(tmp_path):
    def make(script):
        path = tmp_path / "start.so"
        path.write_bytes(shared_object.start_object(NATIVE, script, str(tmp_path / "note-XXXXXX")))
        return str(path)

    return make


RAN = "import _thread, sys; sys.gpusense_ran = (*getattr(sys, 'gpusense_ran', ()), _thread.get_ident())"


@native
def test_python_runs_the_script_with_the_gil_here_and_without_it_elsewhere(library):
    import threading

    path = library(RAN)
    assert ctypes.PyDLL(path).InitializeInjection() == 1
    assert ctypes.CDLL(path).InitializeInjection() == 1
    try:
        here, elsewhere = sys.gpusense_ran
    finally:
        del sys.gpusense_ran
    assert here == threading.get_ident() != elsewhere


@native
def test_a_thread_that_keeps_the_gil_and_waits_for_this_one_does_not_hang(library, run_python):
    """As one that is in cuInit while another is: it goes on without the script after three seconds."""
    path = library("import sys; sys.came_late = True")
    done = run_python(
        f"""
import ctypes, sys, time
elsewhere, keeping = ctypes.CDLL({path!r}), ctypes.PyDLL(None)
thread, answer = ctypes.c_ulong(), ctypes.c_void_p()
began = time.monotonic()
keeping.pthread_create(ctypes.byref(thread), None, elsewhere.InitializeInjection, None)
keeping.pthread_join(thread, ctypes.byref(answer))  # with the GIL, as all since the thread began
print(answer.value, time.monotonic() - began > 2)
while not hasattr(sys, "came_late"):
    time.sleep(0.01)
"""
    )
    assert (done.returncode, done.stdout.split()) == (0, ["1", "True"]), done.stderr


PROGRAM = """
#include <dlfcn.h>
int main(int count, char **words) {
    void *library = dlopen(words[1], RTLD_NOW);
    int (*begin)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : 0;
    return begin ? begin() : 9;
}
"""


@native
def test_a_program_without_python_leaves_a_note(library, compiler, tmp_path):
    (tmp_path / "program.c").write_text(PROGRAM)
    program = tmp_path / "solver"
    subprocess.run([*compiler, "-o", program, tmp_path / "program.c", "-ldl"], check=True, timeout=120)
    path = library("print('no')")
    with subprocess.Popen([program, path], stdout=subprocess.PIPE) as child:
        assert child.communicate(timeout=60)[0] == b""
    assert child.returncode == 1
    (note,) = tmp_path.glob("note-*")
    assert note.read_text() == f"{child.pid} {program}\n"
    assert note.stat().st_mode & 0o777 == 0o600

"""Programs that come through a pipe, which can be opened and read once: as ``python`` runs them."""

import os
import shutil
import subprocess
import sys
import threading

import pytest
from support.machine import ROOT

PROGRAM = "import sys\nprint(__file__, sys.argv[1:], __name__)\n"
pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")


def both(tmp_path, start):
    """What ``start(command)`` gave under python, and under gpusense."""
    for word in ([sys.executable], [sys.executable, "-m", "gpusense", "run"]):
        done = start(word)
        assert done.returncode == 0, done.stderr
        yield done.stdout


def run(command, **more):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GPUSENSE": ""}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False, **more)


@pytest.mark.parametrize("path", ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"])
def test_standard_input_by_its_path(tmp_path, path):
    if not os.path.exists(path):
        pytest.skip("this system has no such path")
    without, found = both(tmp_path, lambda word: run([*word, path, "a"], input=PROGRAM))
    assert found == without == f"{path} ['a'] __main__\n"


def test_process_substitution(tmp_path):
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("needs bash")
    without, found = both(
        tmp_path, lambda word: run([shell, "-c", '"$@" <(echo \'print("from the shell")\') a', "x", *word])
    )
    assert found == without == "from the shell\n"


def test_a_fifo(tmp_path):
    def start(word):
        path = tmp_path / "pipe"
        os.mkfifo(path)
        writer = threading.Thread(target=path.write_text, args=(PROGRAM,), daemon=True)
        writer.start()
        try:
            return run([*word, str(path), "a"])
        finally:
            path.unlink()

    without, found = both(tmp_path, start)
    assert found == without == f"{tmp_path}/pipe ['a'] __main__\n"


def test_a_compiled_file_through_a_pipe(tmp_path):
    import py_compile

    source = tmp_path / "source.py"
    source.write_text(PROGRAM)
    compiled = py_compile.compile(str(source), str(tmp_path / "compiled.pyc"))
    done = run([sys.executable, "-m", "gpusense", "run", compiled, "a"])
    assert done.stdout == f"{compiled} ['a'] __main__\n"


def test_what_is_not_there_is_said_in_the_interpreters_words(tmp_path):
    done = run([sys.executable, "-m", "gpusense", "run", str(tmp_path / "none")])
    assert done.returncode == 2
    assert "can't open file" in done.stderr

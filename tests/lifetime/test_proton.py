"""``gpusense run`` has Triton Proton, which the program may start, use the libcupti that gpusense uses."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")

VARIABLE = "TRITON_CUPTI_LIB_PATH"
SHOW = f"""
import json, os, sys
folder = os.environ.get({VARIABLE!r})
found = os.path.join(folder, "libcupti.so") if folder else None
print(json.dumps([folder, os.path.realpath(found) if found else None, "triton" in sys.modules]), flush=True)
"""


@pytest.fixture
def triton(tmp_path):
    """A folder with a package of that name, which fails if it is imported."""
    package = tmp_path / "packages" / "triton"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    return str(package.parent)


@pytest.fixture
def run(environ, tmp_path):
    """Runs code under ``gpusense run``: its exit status, and what :data:`SHOW` said."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def start(code=SHOW, packages="", **env):
        path = os.pathsep.join(filter(None, (environ["PYTHONPATH"], packages)))
        child = {**{key: value for key, value in environ.items() if key != VARIABLE}, "TMPDIR": str(temporary)}
        done = subprocess.run(
            [sys.executable, "-m", "gpusense", "run", "-c", code],
            env={**child, **env, "PYTHONPATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout, done.stderr
        folder, library, imported = json.loads(done.stdout.splitlines()[0])
        assert not imported
        assert list(temporary.iterdir()) == []  # neither the folder nor anything else is left
        return done.returncode, folder, library

    return start


def test_proton_finds_the_library_that_gpusense_uses_and_the_folder_goes_with_the_run(run, triton, scripted):
    status, folder, library = run(packages=triton)
    assert status == 0
    assert library == os.path.realpath(scripted["GPUSENSE_LIBCUPTI"])
    assert not os.path.exists(folder)


def test_the_folder_goes_where_the_program_is_terminated(run, triton):
    status, folder, _ = run(SHOW + "import signal\nos.kill(os.getpid(), signal.SIGTERM)", packages=triton)
    assert status == -signal.SIGTERM
    assert not os.path.exists(folder)


def test_a_forked_child_leaves_the_folder_to_the_run(run, triton):
    code = SHOW + "child = os.fork()\nif not child: sys.exit()\nos.waitpid(child, 0)\nassert os.path.exists(found)"
    status, folder, _ = run(code, packages=triton)
    assert status == 0
    assert not os.path.exists(folder)


def test_nothing_is_set_where_triton_is_not_there(run, tmp_path):
    # Whatever this Python has: a finder that knows no triton.
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "known = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'triton' else known(name, *rest)\n"
    )
    assert run(packages=str(tmp_path)) == (0, None, None)


def test_what_the_user_set_stays(run, triton, tmp_path):
    status, folder, _ = run(packages=triton, **{VARIABLE: str(tmp_path)})
    assert (status, folder) == (0, str(tmp_path))


def test_nothing_is_set_where_no_libcupti_is_found(run, triton):
    assert run(packages=triton, GPUSENSE_LIBCUPTI="/nowhere/libcupti.so.13") == (0, None, None)


def test_a_library_of_the_plain_name_is_named_by_its_own_folder(run, triton, scripted, tmp_path):
    library = pathlib.Path(shutil.copy(scripted["GPUSENSE_LIBCUPTI"], tmp_path / "libcupti.so"))
    status, folder, found = run(packages=triton, GPUSENSE_LIBCUPTI=str(library))
    assert (status, folder, found) == (0, str(tmp_path), os.path.realpath(library))
    assert library.exists()

"""Shared fixtures: a C compiler, fake libraries built from ``tests/fakes``, clean environments for subprocesses."""

import functools
import gc
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.machine import FAKES, ROOT, find_compiler, require

pytest_plugins = ["support.fixtures", "support.wgpu"]

#: Fake libraries, kept from run to run.
BUILT = ROOT / ".pytest_cache" / "fakes"

# Tests that a shell has started in the background ignore interrupts, and so do their programs.
for _number, _usual in (
    ("SIGINT", signal.default_int_handler),
    ("SIGHUP", signal.SIG_DFL),
    ("SIGQUIT", signal.SIG_DFL),
):
    if signal.getsignal(getattr(signal, _number, signal.SIGINT)) is signal.SIG_IGN:
        signal.signal(getattr(signal, _number), _usual)

# What a test starts is no worker of pytest-xdist, and knows of no screen.
for _name in [name for name in os.environ if name.startswith("PYTEST_XDIST_") or name == "COLUMNS"]:
    del os.environ[_name]

# A slow or busy machine is no finding.
settings.register_profile("untimed", settings.default, deadline=None)
settings.register_profile("few", deadline=None, max_examples=25)  # where the same runs with all examples elsewhere
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "untimed"))


def settle() -> None:
    """Leaves what is alive now out of later collections, each of which would look at a million objects again."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@given(st.none())
def first_draw(_: None) -> None:
    """Hypothesis makes its random numbers' source in the first test, and asks the collector who holds it."""


def pytest_collection_finish() -> None:
    first_draw()  # before settle(), after which the collector does not know; from Python 3.14 on that is a warning
    settle()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # pytest looks at the end for what nobody could reach any more


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    """Runs are kept in a folder of the tests, not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def settled() -> None:
    """For a file whose tests collect often: they look at what its own tests have made."""
    settle()


@pytest.fixture(scope="session")
def compiler() -> list[str]:
    command = find_compiler()
    require(command, "a C compiler")
    assert command is not None
    return command


@pytest.fixture(scope="session")
def build_library(compiler: list[str]):
    """``build_library("libcuda.c", "libcuda.so.1", "-DX=1")`` → path of the shared library.

    It is built once, for all workers and all Pythons: its folder is named after what is in it.
    """
    shared = "-dynamiclib" if sys.platform == "darwin" else "-shared"
    command = [*compiler, shared, "-fPIC", "-O1", "-g", "-pthread"]

    sources = b"".join(path.read_bytes() for path in sorted(FAKES.glob("*.[ch]")))  # some include others

    @functools.cache
    def build(source: str, name: str, *flags: str) -> pathlib.Path:
        what = repr((command, os.stat(shutil.which(command[0]) or command[0]).st_mtime_ns, flags)).encode()
        folder = BUILT / hashlib.sha256(what + sources).hexdigest()[:16]
        if not (folder / name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            ours = folder / f"{name}.{os.getpid()}"  # another worker may build the same
            words = [*command, "-o", str(ours), str(FAKES / source), *flags]
            done = subprocess.run(words, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
            ours.replace(folder / name)
        return folder / name

    return build


@pytest.fixture
def run_python(tmp_path: pathlib.Path):
    """Runs Python code in a child with a time limit; returns the finished process."""

    def run(code: str, *arguments: str, timeout: float = 60, **env: str) -> "subprocess.CompletedProcess[str]":
        environ = {key: value for key, value in os.environ.items() if not key.startswith("GPUSENSE")}
        environ.update(env)
        environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environ,
            cwd=tmp_path,
        )

    return run

"""Processes in which a GPU seems to be: a scripted driver and a scripted CUPTI stand where the real ones would."""

import json
import os
import subprocess
import sys

import pytest
from support.machine import ROOT
from support.programs import HEAD


@pytest.fixture
def scripted(build_library):
    """The variables that name the scripted libraries."""
    return {
        "GPUSENSE_LIBCUDA": str(build_library("libcuda.c", "libcuda.so.1")),
        "GPUSENSE_LIBCUPTI": str(build_library("libcupti.c", "libcupti.so.13")),
        "GPUSENSE_LIBWGPU_NATIVE": "/none",  # a software driver of this machine takes a second each time it is asked
    }


@pytest.fixture
def environ(scripted):
    """This process's environment with the scripted libraries, and without what would change a program's run."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUSENSE", "FAKE", "PYTHON"))}
    return {**kept, "PYTHONPATH": str(ROOT), **scripted}


@pytest.fixture
def answer(run_python, scripted):
    """``answer(code, *arguments)``: the JSON in the last line of what the code prints, with recording on."""

    def run(code, *arguments):
        done = run_python(code, *arguments, GPUSENSE="on", **scripted)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def run(environ, tmp_path):
    """Runs code after HEAD where a GPU seems to be."""

    def start(code, *flags, head=HEAD, timeout=60, **env):
        command = [sys.executable, *flags, "-c", head + code]
        return subprocess.run(command, env=environ | env, capture_output=True, text=True, timeout=timeout, cwd=tmp_path)

    return start


class Gpu:
    """Runs ``gpusense run WORDS…`` where a GPU seems to be."""

    def __init__(self, environ, folder):
        self._environ, self._folder = {**environ, "XDG_CACHE_HOME": str(folder / "cache")}, folder

    def begin(self, *words, **more):
        return subprocess.Popen(
            [sys.executable, "-m", "gpusense", "run", *words],
            cwd=self._folder,
            env={**self._environ, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words, **more):
        with self.begin(*words, **more) as process:
            try:
                out, err = process.communicate(timeout=100)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def gpu(environ, tmp_path):
    return Gpu(environ, tmp_path)

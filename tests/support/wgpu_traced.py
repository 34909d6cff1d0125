"""How the tests look at instrumented programs: records kept in process, or a program run bare and instrumented."""

import json
import os
import pathlib
import subprocess
import sys
import textwrap

from gpusense.integrations import wgpu_py
from support.machine import HERE, ROOT

#: No program here asks for another backend than Vulkan; looking for OpenGL's takes longer than most of them run.
PROGRAMS = """
from wgpu.backends.wgpu_native.extras import set_instance_extras
set_instance_extras(backends=["Vulkan"])
from support import wgpu_programs as programs
"""


class Recording:
    def __init__(self) -> None:
        self.records: list = []
        self.block = None

    def of(self, kind: type) -> list:
        assert wgpu_py.flush(10)
        return [record for record in self.records if type(record) is kind]


def all_back(timer) -> bool:
    """Whether every query that was made for the device can be lent again, once."""
    return sorted(lent[0] for lent in timer.free) == [lent[0] for lent in timer.queries.all]


INSTRUMENT = """
import json, sys
from gpusense.integrations import wgpu_py

def emit(records):
    with open({path!r}, "a") as out:
        for record in records:
            out.write(json.dumps([type(record).__name__, record.name]) + "\\n")

assert wgpu_py.instrument(emit=emit, copies={copies}) is True
"""


class Outcome:
    def __init__(self, done: subprocess.CompletedProcess, recorded: list) -> None:
        self.code, self.out, self.err, self.recorded = done.returncode, done.stdout, done.stderr, recorded

    @property
    def kernels(self) -> list[str]:
        return [name for kind, name in self.recorded if kind == "GpuKernel"]


class Both:
    """Runs a program bare and instrumented; the same exit code and standard output are required."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def __call__(self, code: str, *, copies: bool = False, same_output: bool = True, timeout: float = 60) -> Outcome:
        path = self.folder / "records"
        program = textwrap.dedent(code)
        bare = self.python(PROGRAMS + program, timeout)
        traced = self.python(INSTRUMENT.format(path=str(path), copies=copies) + PROGRAMS + program, timeout)
        assert traced.returncode == bare.returncode, traced.stderr
        if same_output:
            assert traced.stdout == bare.stdout
        assert "gpusense" not in traced.stderr.replace(str(ROOT), ""), traced.stderr
        recorded = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return Outcome(traced, recorded)

    def python(self, program: str, timeout: float) -> subprocess.CompletedProcess:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environ, cwd=self.folder)

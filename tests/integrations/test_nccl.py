"""Whose collectives are told, and when; the rest is in tests/backends/nccl and tests/lifetime/test_nccl.py."""

import sys

import pytest
from support.machine import NATIVE

from gpusense._capi.machine import nccl_code

pytestmark = pytest.mark.skipif(NATIVE not in nccl_code.CODES, reason="there is no code for this processor and system")


@pytest.mark.skipif(sys.platform != "linux", reason="the profiler is an ELF object")
def test_a_program_of_its_own_asks_for_it_once(run_python, tmp_path):
    (tmp_path / "torch.py").write_text("")
    done = run_python(
        f"""
import os, sys
import gpusense
from gpusense.integrations import nccl
tracer = gpusense.get_tracer()
nccl.watch(tracer)
print(os.environ.get("NCCL_PROFILER_PLUGIN"), len(list(tracer.recorder.sources)))
sys.path.insert(0, {str(tmp_path)!r})
import torch
print(os.environ.get("NCCL_PROFILER_PLUGIN"), len(list(tracer.recorder.sources)))
print(nccl.instrument(), len(list(tracer.recorder.sources)))
print(tracer.session().meta["sources"]["nccl"])
""",
        GPUSENSE="on",
    )
    assert done.stdout.splitlines() == [
        "None 0",
        "STATIC_PLUGIN 1",
        "True 1",
        "{'communicators': 0, 'collectives': 0, 'lost': 0, 'late_channels': 0, 'under_way': 0}",
    ], done.stderr


def test_where_nothing_is_recorded_nothing_is_installed(run_python):
    done = run_python(
        """
import os
from gpusense.integrations import nccl
print(bool(nccl.instrument()), os.environ.get("NCCL_PROFILER_PLUGIN"))
""",
        GPUSENSE="off",
    )
    assert done.stdout.split() == ["False", "None"], done.stderr

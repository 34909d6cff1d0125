"""Compilers, exporters and copies of the real torch, where it is installed: each gives the same with and without us."""

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest
from support.machine import ROOT

SCRIPT = ROOT / "tests" / "support" / "torch_rows.py"
ROWS = re.findall(r"^@row\ndef (\w+)", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)


@functools.cache
def outcomes(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GPUSENSE": "on"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def compare(name, order, *arguments):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    without, found = outcomes(*arguments), outcomes(order, *arguments)
    assert found["rows"][name] == without["rows"][name]
    assert found["errors"] == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("name", ROWS)
def test_row(name, order):
    """``order``: whether torch is instrumented before or after its compiler has been imported."""
    compare(name, order)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["no_graph_break", "compiled_after_a_call"])
def test_the_script_sees_what_it_is_for(name):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    found, warned = outcomes()["rows"][name]
    if name == "no_graph_break":
        assert found[:2] == [0, 1]
    else:
        assert len(found[0]) == 1, "one graph"
    assert warned == []

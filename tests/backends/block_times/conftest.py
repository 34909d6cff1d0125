"""Block times over a driver with scripted streams, in a process that has loaded no library with streams."""

import shutil

import pytest
from support.streams import Block, Driver

from gpusense._attribution.open_blocks import innermost
from gpusense._capi import loading
from gpusense.backends import cuda
from gpusense.backends.block_times import hosts
from gpusense.backends.block_times.source import BlockTimes


@pytest.fixture
def driver(build_library, tmp_path, monkeypatch):
    """Live, with a context on this thread."""
    path = tmp_path / "fake-libcuda.so"
    shutil.copy(build_library("libcuda.c", "libcuda.so.1"), path)
    monkeypatch.setenv("GPUSENSE_LIBCUDA", str(path))
    monkeypatch.setattr(loading, "_handles", {})
    monkeypatch.setattr(cuda, "SOURCE", cuda.CudaSource())
    made = Driver(path, monkeypatch)
    made.context()
    yield made
    made.leave()


@pytest.fixture
def no_library(monkeypatch):
    """Of this process none is asked for its streams."""
    monkeypatch.setattr(hosts, "_HOSTS", {})
    monkeypatch.setattr(hosts, "SILENT", {})


@pytest.fixture
def times(driver, no_library):
    innermost.set(None)
    made = BlockTimes()
    made.records = []
    made.start(lambda records: made.records.extend(records))
    made.block = lambda name="b": Block(made, name)
    yield made
    innermost.set(None)
    made.stop()

"""The scripted libcupti as a capture of it begins."""

import os
import pathlib
import shutil

import pytest
from support.cupti import SMALL, Fake, Receiver
from support.cupti_releases import fetch_cupti

from gpusense._decode import layouts
from gpusense.backends import cuda
from gpusense.backends.cupti import activity as cupti
from gpusense.backends.cupti import broker


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """A folder with the real libcupti of some releases."""
    named = os.environ.get("GPUSENSE_TEST_CUPTI")
    if named:
        return pathlib.Path(named)
    if not os.environ.get("CI"):
        pytest.skip("needs GPUSENSE_TEST_CUPTI, a folder filled by tests/tools/fetch_cupti.py")
    folder = tmp_path_factory.mktemp("cupti")
    fetch_cupti.fetch(folder)
    return folder


@pytest.fixture
def fresh(monkeypatch):
    """CUDA looks live, and no copy has a subscription yet."""
    monkeypatch.setattr(cuda.SOURCE, "is_live", lambda: True)
    monkeypatch.setattr(cuda.SOURCE, "driver_version", lambda: (13, 0))
    place = broker.interpreter_dict()
    place.pop(broker.KEY, None)
    yield place
    place.pop(broker.KEY, None)


@pytest.fixture
def load_fake(build_library, monkeypatch, tmp_path):
    def load(*flags):
        # A copy of its own: the library's state is per file.
        path = shutil.copy(build_library("libcupti.c", "libcupti.so.13", *flags), tmp_path / "libcupti.so.13")
        monkeypatch.setenv("GPUSENSE_LIBCUPTI", str(path))
        return Fake(path)

    return load


@pytest.fixture
def fake(load_fake, fresh):
    return load_fake()


@pytest.fixture
def start(fresh):
    started = []

    def begin(kinds=layouts.DEFAULT_KINDS, **options):
        activity = cupti.CuptiActivity()
        absent = activity.load()
        assert absent is None, absent
        receiver = Receiver(activity.strides, activity.name)
        activity.start(kinds, receiver, **{**SMALL, **options})
        started.append(activity)
        return activity, receiver

    yield begin
    for activity in started:
        activity.stop()

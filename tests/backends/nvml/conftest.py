"""A scripted libnvidia-ml."""

import pytest
from support.devices import FakeNvml


@pytest.fixture
def make(build_library, tmp_path, monkeypatch):
    """``make("nvmlX")`` → a fresh scripted library without the function nvmlX, which the package will load."""

    def build(*lacks: str) -> FakeNvml:
        fake = FakeNvml(build_library("libnvidia_ml.c", "libnvidia-ml.so.1"), tmp_path, lacks)
        monkeypatch.setenv("GPUSENSE_LIBNVIDIA_ML", fake.path)
        return fake

    return build


@pytest.fixture
def fake(make):
    return make()

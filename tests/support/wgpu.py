"""Fixtures for tests of wgpu: the package with a Vulkan driver (lavapipe will do), unpacked wheels, small programs."""

import ctypes
import importlib.util
import os
import pathlib
import sys

import pytest

from gpusense._capi import loading
from gpusense.integrations import wgpu_py
from support import wgpu_traced, wgpu_wheels
from support.machine import require


def _driver() -> bool:
    folders = (pathlib.Path("/usr/share/vulkan/icd.d"), pathlib.Path("/etc/vulkan/icd.d"))
    named = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES")
    return bool(named) or any(list(folder.glob("*.json")) for folder in folders if folder.is_dir())


@pytest.fixture(scope="session")
def driver() -> None:
    """A Vulkan driver is there."""
    os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")  # EGL complains without one
    require(_driver(), "a Vulkan driver (mesa-vulkan-drivers, libvulkan1)")


@pytest.fixture(scope="session")
def wgpu(driver: None):
    """The wgpu package, with an adapter behind it."""
    require(importlib.util.find_spec("wgpu"), "the wgpu package")
    import wgpu

    return wgpu


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch):
    """``fakes(path)`` loads a fake library. It leaves the process after the test, as do those that gpusense loads
    meanwhile: whoever looks for wgpu-native or Vulkan later would find them mapped."""
    monkeypatch.setattr(loading, "_handles", {})
    opened: list[ctypes.CDLL] = []

    def load(path: pathlib.Path) -> ctypes.CDLL:
        opened.append(ctypes.CDLL(str(path)))
        return opened[-1]

    yield load
    import _ctypes

    close = _ctypes.FreeLibrary if sys.platform == "win32" else _ctypes.dlclose
    for library in (*opened, *(found.library for found in loading._handles.values())):
        close(library._handle)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``wheel``: every unpacked wgpu wheel; one skipped (or, in CI, failing) case where there is none."""
    if "wheel" in metafunc.fixturenames:
        found = wgpu_wheels.present() or [None]
        metafunc.parametrize("wheel", found, ids=[path.name if path else "none" for path in found], indirect=True)


@pytest.fixture
def wheel(request: pytest.FixtureRequest) -> pathlib.Path:
    """The folder of an unpacked wgpu wheel."""
    require(request.param, f"wheels in {wgpu_wheels.VARIABLE} (tests/support/wgpu_wheels.py fetches them)")
    return request.param


@pytest.fixture
def programs(wgpu):
    """Small wgpu programs."""
    from support import wgpu_programs

    return wgpu_programs


@pytest.fixture
def recording(wgpu):
    """What wgpu-py does from now on, kept in this process."""
    made = wgpu_traced.Recording()
    assert wgpu_py.instrument(emit=made.records.extend, block=lambda: made.block) is True
    yield made
    wgpu_py.uninstrument()


@pytest.fixture
def both(wgpu, tmp_path: pathlib.Path) -> wgpu_traced.Both:
    """Runs a program bare and instrumented."""
    return wgpu_traced.Both(tmp_path)

"""What wgpu tests need: the wgpu package, a Vulkan driver (lavapipe will do), and unpacked wheels for the ABI tests."""

import importlib.util
import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import traced  # noqa: E402
import wheels  # noqa: E402

from gpusense.integrations import wgpu_py  # noqa: E402

os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")  # EGL complains without one


def _require(condition: object, what: str) -> None:
    if condition:
        return
    if os.environ.get("CI"):
        pytest.fail(f"CI must have {what}")
    pytest.skip(f"needs {what}")


def _driver() -> bool:
    folders = (pathlib.Path("/usr/share/vulkan/icd.d"), pathlib.Path("/etc/vulkan/icd.d"))
    named = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES")
    return bool(named) or any(list(folder.glob("*.json")) for folder in folders if folder.is_dir())


@pytest.fixture(scope="session")
def driver() -> None:
    _require(_driver(), "a Vulkan driver (mesa-vulkan-drivers, libvulkan1)")


@pytest.fixture(scope="session")
def wgpu(driver: None):
    """The wgpu package, with an adapter behind it."""
    spec = importlib.util.find_spec("wgpu")
    _require(spec is not None and spec.origin, "the wgpu package")  # this folder is a namespace of that name
    import wgpu

    return wgpu


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``wheel``: every unpacked wgpu wheel; one skipped (or, in CI, failing) case where there is none."""
    if "wheel" in metafunc.fixturenames:
        found = wheels.present() or [None]
        metafunc.parametrize("wheel", found, ids=[path.name if path else "none" for path in found])


@pytest.fixture(autouse=True)
def _wheel_is_there(request: pytest.FixtureRequest) -> None:
    if "wheel" in request.fixturenames:
        _require(request.getfixturevalue("wheel"), f"wheels in {wheels.VARIABLE} (tests/wgpu/wheels.py fetches them)")


@pytest.fixture
def programs(wgpu):
    import programs

    return programs


@pytest.fixture
def recording(wgpu):
    made = traced.Recording()
    assert wgpu_py.instrument(emit=made.records.extend, block=lambda: made.block) is True
    yield made
    wgpu_py.uninstrument()


@pytest.fixture
def both(wgpu, tmp_path: pathlib.Path) -> traced.Both:
    """Runs a program bare and instrumented."""
    return traced.Both(tmp_path)

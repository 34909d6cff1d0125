"""Sizes and offsets of every structure against the header of each wheel, and the version word."""

import ctypes
import pathlib
import subprocess

import pytest
from support import wgpu_wheels

from gpusense._capi import wgpu as capi
from gpusense._capi.wgpu_structs import FAMILIES, WGPUStringView, struct_types, structures
from gpusense._records.records import Unavailable


@pytest.mark.parametrize(
    ("word", "major", "text"),
    [
        (0x00130301, 19, "0.19.3.1"),
        (0x00130401, 19, "0.19.4.1"),
        (0x16010005, 22, "22.1.0.5"),
        (0x18000301, 24, "24.0.3.1"),
        (0x1B000400, 27, "27.0.4.0"),
        (0x1D000101, 29, "29.0.1.1"),
    ],
)
def test_version_word(word: int, major: int, text: str) -> None:
    version = capi.decode_version(word)
    assert (version.major, str(version)) == (major, text)


@pytest.mark.parametrize("word", [0x00120103, 0x17000000, 0x1A000000, 0x1C000000, 0x1E000000, 0])
def test_unknown_major_is_refused_with_a_reason(build_library, fakes, word: int) -> None:
    path = build_library("libwgpu_native.c", "libwgpu_native.so", f"-DVERSION={word}u")
    api = capi.open_api(fakes(path), str(path))
    assert isinstance(api, Unavailable)
    assert "unknown ABI" in api.reason
    assert str(capi.decode_version(word)) in api.reason


def test_another_library_is_refused(build_library, fakes) -> None:
    path = build_library("loadable.c", "libother.so")
    api = capi.open_api(fakes(path), str(path))
    assert isinstance(api, Unavailable)
    assert "wgpuGetVersion" in api.reason


@pytest.mark.parametrize("major", sorted(FAMILIES))
def test_every_known_major_has_structures_and_prototypes(major: int) -> None:
    space = structures(major)
    assert struct_types(space)
    assert "wgpuQueueSubmit" in capi._prototypes(space)


def test_string_views_of_every_kind() -> None:
    raw = ctypes.create_string_buffer(b"abc\0def")
    address = ctypes.addressof(raw)
    assert WGPUStringView(None, 5).text() == ""
    assert WGPUStringView(address, ctypes.c_size_t(-1).value).text() == "abc"
    assert WGPUStringView(address, 2).text() == "ab"
    assert capi.read_text(None) == ""


def test_layouts_equal_the_header(wheel: pathlib.Path, compiler: list[str], tmp_path: pathlib.Path) -> None:
    library = wgpu_wheels.library(wheel)
    api = capi.open_api(ctypes.CDLL(str(library)), str(library))
    assert not isinstance(api, Unavailable)
    source = tmp_path / "layout.c"
    ours = layout_lines(api.structs)
    source.write_text(layout_program(api.structs))
    headers = tmp_path / "headers"
    (headers / "webgpu-headers").mkdir(parents=True)
    resources = library.parent
    for name in ("webgpu.h", "wgpu.h"):
        (headers / name).write_text((resources / name).read_text())
    (headers / "webgpu-headers" / "webgpu.h").write_text((resources / "webgpu.h").read_text())
    program = tmp_path / "layout"
    done = subprocess.run(
        [*compiler, "-w", "-I", str(headers), "-o", str(program), str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    theirs = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.splitlines()
    assert ours == theirs
    assert len(ours) > 60


def layout_lines(space) -> list[str]:
    lines = []
    for name, kind in struct_types(space).items():
        lines.append(f"{name} {ctypes.sizeof(kind)}")
        lines += [f"{name}.{field[0]} {getattr(kind, field[0]).offset}" for field in kind._fields_]
    return lines


def layout_program(space) -> str:
    body = []
    for name, kind in struct_types(space).items():
        body.append(f'printf("{name} %zu\\n", sizeof({name}));')
        body += [f'printf("{name}.{field[0]} %zu\\n", offsetof({name}, {field[0]}));' for field in kind._fields_]
    return "\n".join(["#include <stddef.h>", "#include <stdio.h>", '#include "wgpu.h"', "int main(void) {", *body, "}"])


def test_the_values_that_moved_between_families(wheel: pathlib.Path, compiler: list[str], tmp_path) -> None:
    library = wgpu_wheels.library(wheel)
    api = capi.open_api(ctypes.CDLL(str(library)), str(library))
    assert not isinstance(api, Unavailable)
    text = (library.parent / "webgpu.h").read_text()
    assert value(text, "WGPUFeatureName_TimestampQuery") == api.timestamp_feature
    assert value(text, "WGPUQueryType_Timestamp") == api.timestamp_query_type
    assert value(text, "WGPURequestDeviceStatus_Success") == api.success
    wgsl = "WGPUSType_ShaderSourceWGSL" if api.structs.views else "WGPUSType_ShaderModuleWGSLDescriptor"
    assert value(text, wgsl) == api.wgsl_stype
    for kind, name in (("discrete", "DiscreteGPU"), ("integrated", "IntegratedGPU"), ("cpu", "CPU")):
        assert api.adapter_types[value(text, f"WGPUAdapterType_{name}")] == kind
    for number, name in capi.BACKEND_NAMES.items():
        assert value(text, f"WGPUBackendType_{name}") == number


def value(header: str, name: str) -> int:
    import re

    found = re.search(rf"\b{name}\s*=\s*(0x[0-9A-Fa-f]+|\d+)", header)
    assert found, name
    return int(found.group(1), 0)

"""Each library, and each driver's files, stand behind a class that has the methods of its protocol."""

import inspect

import pytest

from gpusense._records.protocols import ActivitySource, DeviceSource, MetricsSource
from gpusense.backends.amd.rocm_smi import RocmSmiSource
from gpusense.backends.amd.sysfs import AmdSysfsSource
from gpusense.backends.cuda import CudaSource
from gpusense.backends.cupti.activity import CuptiActivity
from gpusense.backends.drm.source import DrmSource
from gpusense.backends.nvml.source import NvmlSource
from gpusense.backends.wgpu.source import WgpuSource

PARTS = [
    (CudaSource, DeviceSource),
    (CuptiActivity, ActivitySource),
    (NvmlSource, DeviceSource),
    (NvmlSource, MetricsSource),
    (AmdSysfsSource, MetricsSource),
    (RocmSmiSource, MetricsSource),
    (DrmSource, MetricsSource),
    (WgpuSource, DeviceSource),
]


def methods(protocol):
    return [name for name, value in vars(protocol).items() if inspect.isfunction(value) and name[0] != "_"]


def test_protocols_have_methods():
    assert methods(MetricsSource) == ["devices", "sample"]
    assert methods(ActivitySource) == ["start", "flush", "stop"]


@pytest.mark.parametrize(("source", "protocol"), PARTS, ids=lambda part: part.__name__)
def test_a_source_takes_and_gives_what_its_protocol_says(source, protocol):
    for name in methods(protocol):
        ours, asked = (inspect.signature(getattr(owner, name)) for owner in (source, protocol))
        assert ours.return_annotation == asked.return_annotation, name
        for place, wanted in enumerate(asked.parameters.values()):
            found = ours.parameters[wanted.name]
            assert found.kind == wanted.kind, (name, wanted.name)
            assert found.annotation == wanted.annotation, (name, wanted.name)
            assert (found.default is found.empty) == (wanted.default is wanted.empty), (name, wanted.name)
            assert found.kind == found.KEYWORD_ONLY or [*ours.parameters][place] == wanted.name, (name, wanted.name)
        added = [one for one in ours.parameters.values() if one.name not in asked.parameters]
        assert all(one.default is not one.empty for one in added), name

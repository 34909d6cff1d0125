"""Rows only: where each vendor library may be, per platform. Adding a name is a one-line change."""

from typing import NamedTuple


class Library(NamedTuple):
    """How one library is named and where it may lie. ``driver``: comes with a kernel driver, never in a wheel."""

    name: str
    env: str
    linux: tuple[str, ...] = ()
    win32: tuple[str, ...] = ()
    darwin: tuple[str, ...] = ()
    wheel_globs: tuple[str, ...] = ()  # below a site-packages folder
    folder_globs: tuple[str, ...] = ()  # absolute, below toolkit folders; newest name first
    driver: bool = False
    mapped: str = ""  # how the file name of a copy already in the process begins
    env_fallback: str = ""  # a variable other tools use for the same path
    major: str = ""  # where a path says which CUDA toolkit it belongs to: a pattern whose group 1 is the major version


CUDA = Library(
    "libcuda",
    "GPUSENSE_LIBCUDA",
    linux=("libcuda.so.1",),
    win32=("nvcuda.dll",),
    driver=True,
    folder_globs=("/usr/lib/wsl/lib/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"),
    mapped="libcuda.so",
)

CUPTI = Library(
    "libcupti",
    "GPUSENSE_LIBCUPTI",
    linux=("libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8", "libcupti.so.11.7"),
    win32=("cupti64_13.dll",),
    wheel_globs=(
        "nvidia/cu[0-9]*/lib/libcupti.so.1[0-9]*",
        "nvidia/cuda_cupti/lib/libcupti.so.1[0-9]*",
        "nvidia/cu[0-9]*/bin/x86_64/cupti64_*.dll",
        "nvidia/cuda_cupti/bin/cupti64_*.dll",
        "torch/lib/cupti64_*.dll",
    ),
    folder_globs=(
        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.1[0-9]*",
        "/usr/local/cuda/lib64/libcupti.so.1[0-9]*",
        "/usr/local/cuda/targets/*-linux/lib/libcupti.so.1[0-9]*",
        "/usr/lib/*-linux-gnu/libcupti.so.1[0-9]*",
        "{CONDA_PREFIX}/lib/libcupti.so.1[0-9]*",
        "{CUDA_PATH}/extras/CUPTI/lib64/cupti64_*.dll",
    ),
    mapped="libcupti.so",
    major=r"(?:libcupti\.so\.|nvidia/cu|cupti64_)(1\d)(?!\d)",
)

NVML = Library(
    "libnvidia-ml",
    "GPUSENSE_LIBNVIDIA_ML",
    linux=("libnvidia-ml.so.1",),
    win32=("nvml.dll", "{SystemRoot}/System32/nvml.dll", "{ProgramW6432}/NVIDIA Corporation/NVSMI/nvml.dll"),
    driver=True,
    folder_globs=("/usr/lib/wsl/lib/libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1"),
    mapped="libnvidia-ml.so",
)

ROCM_SMI = Library(
    "librocm_smi64",
    "GPUSENSE_LIBROCM_SMI",
    linux=("librocm_smi64.so.7", "librocm_smi64.so.6", "librocm_smi64.so.5", "librocm_smi64.so.1", "librocm_smi64.so"),
    folder_globs=("/opt/rocm/lib/librocm_smi64.so*", "/opt/rocm-*/lib/librocm_smi64.so*"),
    mapped="librocm_smi64.so",
)

WGPU = Library(
    "libwgpu_native",
    "GPUSENSE_LIBWGPU_NATIVE",
    linux=("libwgpu_native.so",),
    win32=("wgpu_native.dll",),
    darwin=("libwgpu_native.dylib",),
    wheel_globs=(
        "wgpu/resources/libwgpu_native-release.so",
        "wgpu/resources/libwgpu_native-release.dylib",
        "wgpu/resources/wgpu_native-release.dll",
    ),
    mapped="libwgpu_native",
    env_fallback="WGPU_LIB_PATH",
)

CPP_RUNTIME = Library(
    "libstdc++",
    "",
    linux=("libstdc++.so.6", "libc++abi.so.1"),
    darwin=("/usr/lib/libc++abi.dylib",),
    mapped="libstdc++.so",
)

VULKAN = Library(
    "libvulkan",
    "GPUSENSE_LIBVULKAN",
    linux=("libvulkan.so.1",),
    win32=("vulkan-1.dll",),
    darwin=("libvulkan.1.dylib",),
    mapped="libvulkan.so",
)

LIBRARIES = (CUDA, CUPTI, NVML, ROCM_SMI, WGPU, CPP_RUNTIME, VULKAN)

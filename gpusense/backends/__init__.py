"""Names of the backends in the order they are asked; nothing is imported here."""

#: (name, module below this package). ``open()`` of a module returns a Backend or an Unavailable.
BACKENDS: tuple[tuple[str, str], ...] = (
    ("cuda", "cuda"),
    ("cupti", "cupti.activity"),
    ("nvml", "nvml.source"),
    ("amd_sysfs", "amd.sysfs"),
    ("rocm_smi", "amd.rocm_smi"),
    ("drm_files", "drm.source"),
    ("wgpu", "wgpu.source"),
)

"""Names of the backends in the order they are asked; nothing is imported here."""

#: (name, module below this package). ``open()`` of a module returns a Backend or an Unavailable.
BACKENDS: tuple[tuple[str, str], ...] = (
    ("cuda", "cuda"),
    ("cupti", "cupti"),
    ("nvml", "nvml"),
    ("amd_sysfs", "amd_sysfs"),
    ("rocm_smi", "rocm_smi"),
    ("drm_files", "drm_files"),
    ("wgpu", "wgpu"),
)

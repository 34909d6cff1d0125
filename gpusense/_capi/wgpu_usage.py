"""Usage bits of buffers and textures as text; no ctypes here, so that anyone may import it."""

#: Bits of WGPUBufferUsage and WGPUTextureUsage, under the names of the WebGPU specification.
BUFFER_USAGE = (
    "MAP_READ",
    "MAP_WRITE",
    "COPY_SRC",
    "COPY_DST",
    "INDEX",
    "VERTEX",
    "UNIFORM",
    "STORAGE",
    "INDIRECT",
    "QUERY_RESOLVE",
)
TEXTURE_USAGE = ("COPY_SRC", "COPY_DST", "TEXTURE_BINDING", "STORAGE_BINDING", "RENDER_ATTACHMENT")


def usage_text(usage: int, texture: bool = False) -> str | None:
    """``COPY_DST|STORAGE``; None for no bits."""
    key = (usage, texture)
    if key not in _texts:
        names = TEXTURE_USAGE if texture else BUFFER_USAGE
        _texts[key] = "|".join(name for bit, name in enumerate(names) if usage & (1 << bit)) or None
    return _texts[key]


_texts: dict[tuple[int, bool], str | None] = {}

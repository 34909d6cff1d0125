"""What wgpu-py does to begin a compute pass without options, where it is known to be just this.

It makes a descriptor with an empty label, calls the native function and wraps its answer. Half of the time of an
unlabelled pass goes into that descriptor, in which only our queries differ from pass to pass; so one lies ready for
every two queries. A wgpu-py that does anything else has other names in that function, and is called as before.
"""

from types import CodeType
from typing import Any

#: Everything that the function of wgpu-py looks up.
NAMES = frozenset(
    [
        "ffi",
        "NULL",
        "check_struct",
        "new_struct_p",
        "_internal",
        "get",
        "lib",
        "WGPU_QUERY_SET_INDEX_UNDEFINED",
        "to_c_string_view",
        "libf",
        "wgpuCommandEncoderBeginComputePass",
        "GPUComputePassEncoder",
        "_device",
    ]
)
ARGUMENTS = ("self", "label", "timestamp_writes")


def plain_code(function: Any) -> CodeType | None:
    """The code of wgpu-py's ``begin_compute_pass`` if it is as known."""
    code: CodeType | None = getattr(function, "__code__", None)
    if code is None or frozenset(code.co_names) != NAMES or function.__defaults__:
        return None
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    known = arguments == ARGUMENTS and function.__kwdefaults__ == {"label": "", "timestamp_writes": None}
    return code if known else None

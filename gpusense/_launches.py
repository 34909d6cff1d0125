"""What CUPTI adds to the program's launches, estimated from their records: no thread of ours spends it. Pure."""

from collections.abc import Mapping

from . import _layouts as layouts
from ._walk import Fields, Piece, walk

#: From docs/gpu-results.md: a step of 30 ms with 870 launches is 4 to 5 % longer on an H200 while CUPTI records it.
LAUNCH_NS = 1_500
#: Of each further record of one launch, as nodes of a graph have. Not measured by itself: replays of 24 kernels take
#: 7 % longer there, so a node costs far less than a launch.
FURTHER_NS = 150


def slowed_ns(buffer: memoryview, strides: Mapping[int, int]) -> int:
    """By how long the launches took longer whose records ``buffer`` holds."""
    launches = records = 0
    piece = Piece(buffer)
    for kind, place in walk(piece, strides, len(buffer))[0].items():
        field = layouts.LAYOUTS[kind].field("correlation") if kind in layouts.WORK_KINDS else None
        if field is not None and field.end <= strides[kind]:
            fields = Fields(piece, place, strides[kind])
            launches += len(set(memoryview(fields.column("I", field.offset)).cast("I").tolist()))
            records += place.count(strides[kind])
            fields.close()
    piece.close()
    return launches * LAUNCH_NS + (records - launches) * FURTHER_NS

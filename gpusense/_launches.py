"""What CUPTI adds to the program's launches, estimated from their records: no thread of ours spends it. Pure."""

from collections.abc import Mapping

from . import _layouts as layouts
from ._walk import Fields, Piece, walk

#: Measured on an H200 (docs/gpu-results.md): a launch-bound training job is 1.4 ms a step slower for 870 launches, and
#: replays of a graph with 24 kernels 4 us each.
LAUNCH_NS = 1_500
FURTHER_NS = 150  # of each further record of one launch, as nodes of a graph have


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

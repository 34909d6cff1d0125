"""Blocks whose beginning is in a file and whose record is not."""

from gpusense._records.records import OPEN_AT_END, BlockRecord
from gpusense.session._unrecorded import Unrecorded, open_at_end


def test_what_has_no_record_is_made_of_its_boundaries():
    blocks = Unrecorded()
    blocks.opened(1, None, "step", 7, 100)
    blocks.opened(2, 1, "forward", 7, 110)
    blocks.closed(2, 150)
    blocks.opened(3, 1, "backward", 7, 160)
    blocks.opened(4, None, "whole", 8, 120)
    blocks.closed(4, 170)
    blocks.recorded([BlockRecord("whole", 4, None, ("whole",), 120, 170, 8)])
    blocks.closed(9, 180)  # of a block from before
    assert blocks.records(0) == [
        BlockRecord("step", 1, None, ("step",), 100, 180, 7, {OPEN_AT_END: True}),
        BlockRecord("forward", 2, 1, ("step", "forward"), 110, 150, 7),
        BlockRecord("backward", 3, 1, ("step", "backward"), 160, 180, 7, {OPEN_AT_END: True}),
    ]
    assert [record.end_ns for record in blocks.records(999)] == [999, 150, 999]
    assert open_at_end([("step",)]) == "1 block has no end, “step”: its time is at least what is shown"
    paths = [("step",), ("step", "backward")]
    assert open_at_end(paths) == (
        "2 blocks have no end, the last of them “step › backward”: their times are at least what is shown"
    )

"""The control block that the mailbox's machine code and Python share. Data only."""

MAX_SLOTS = 1024

# The control block: eight-byte numbers at these offsets, three tables of MAX_SLOTS numbers behind them.
SLOTS = 0x00
TOTAL = 0x08  # slots and scrap buffers
SHIFT = 0x10  # a buffer has 1 << SHIFT bytes
SIZE = 0x18
ARENA = 0x20
ARENA_BYTES = 0x28
REQUESTED = 0x40  # counters
COMPLETED = 0x48
MISSED = 0x50  # requests that found no free slot
FOREIGN = 0x58  # completed pointers that were not lent by us
HIGH = 0x60  # slots that were ever lent: all before this one
NEWEST = 0x68  # correlation id, the newest by 32-bit distance; UNSET before the first
BLIND = 0x70  # 1 once there was a record that KINDS does not know: ids may have been missed
STATE = 0x100
THREAD = STATE + 8 * MAX_SLOTS  # thread pointer of the thread that requested
VALID = THREAD + 8 * MAX_SLOTS  # bytes that CUPTI filled
CURSOR = VALID + 8 * MAX_SLOTS  # bytes of a lent buffer that were looked at
KINDS = CURSOR + 8 * MAX_SLOTS  # of each record kind its size, and from bit 32 on where its id is (0: it has none)
MAX_KINDS = 64
CONTROL_BYTES = KINDS + 8 * MAX_KINDS

UNSET = 1 << 63

FREE, LENT, FULL, TAKEN = 1, 2, 3, 4

CONSTANTS = """
    .set SLOTS, 0x00
    .set TOTAL, 0x08
    .set SHIFT, 0x10
    .set SIZE, 0x18
    .set ARENA, 0x20
    .set ARENA_BYTES, 0x28
    .set REQUESTED, 0x40
    .set COMPLETED, 0x48
    .set MISSED, 0x50
    .set FOREIGN, 0x58
    .set HIGH, 0x60
    .set NEWEST, 0x68
    .set BLIND, 0x70
    .set STATE, 0x100
    .set THREAD, 0x2100
    .set VALID, 0x4100
    .set CURSOR, 0x6100
    .set KINDS, 0x8100
    .set MAX_KINDS, 64
    .set FREE, 1
    .set LENT, 2
    .set FULL, 3
    .set TAKEN, 4
"""

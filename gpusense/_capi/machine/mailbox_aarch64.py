"""The mailbox's machine code for aarch64; see ``mailbox_code.py``. Data only."""

from .executable import Code
from .mailbox_layout import CONSTANTS

AARCH64 = Code(
    bytes.fromhex(
        "00000000000000005f2403d5a9ffff582a0101914b7d5fc86b0500914b7d0cc8acffff355f0000f92d0540f92e0140f9"
        "2f010491f0031faa1f020debc2010054eb0140f97f0500f101010054ebfd5fc87f0500f1a10000544b0080d2eb7d0cc8"
        "6cffff350d000014ef21009110060091f2ffff172a4101914b7d5fc86b0500914b7d0cc8acffff35bf010eebc0020054"
        "b00500d10c0000144bd03bd52a0940914a0104914b7930f81f020eebc30000542a4101914b7d5fc86b0500914b7d0cc8"
        "acffff352b0940f91022cb9a2b1140f910020b8b100000f92b0d40f92b0000f9c0035fd61f0000f93f0000f9c0035fd6"
        "5f2403d569f8ff582a2101914b7d5fc86b0500914b7d0cc8acffff352a1140f94a000acb2b1540f95f010beb02030054"
        "2c0d40f98d0500d15f010dea810200542d0940f94a25cd9a2e010491ce0d0a8bcffddfc8ff0900f1a10100549f000ceb"
        "84908c9a2f114091ef010491e4792af82b0140f95f010beb2b0080d26c0080d28b318b9acbfd9fc8c0035fd62a610191"
        "4b7d5fc86b0500914b7d0cc8acffff35c0035fd65f2403d549f3ff582d0140f92f010491f0031faa1f020debc2010054"
        "eb0140f97f0d00f101010054ebfd5fc87f0d00f1a10000548b0080d2eb7d0cc86cffff3506000014ef21009110060091"
        "f2ffff17e0031f2ac0035fd62a1140914a0104914b7970f80b0400f94a0940d14b7970f80b0800f92b0940f91022cb9a"
        "2b1140f910020b8b100000f920008052c0035fd65f2403d5c9eeff582a1140f90a000acb2b1540f95f010beba2010054"
        "2b0940f94a25cb9a2e010491ce0d0a8b2c0080d2cb7d5fc87f1100f1a1000054ccfd0dc88dffff3520008052c0035fd6"
        "e0031f2ac0035fd65f2403d540d03bd5c0035fd6"
    ),
    entries={"requested": 0x008, "completed": 0x0F0, "take": 0x194, "give": 0x224, "thread": 0x278},
    assembly=CONSTANTS
    + r"""
    .macro count offset
    add     x10, x9, #\offset
9:  ldxr    x11, [x10]
    add     x11, x11, #1
    stxr    w12, x11, [x10]
    cbnz    w12, 9b
    .endm

control:
    .quad 0

requested:                              // (x0: uint8_t **buffer, x1: size_t *size, x2: size_t *max_records)
    hint    #34                         // bti c
    ldr     x9, control
    count   REQUESTED
    str     xzr, [x2]
    ldr     x13, [x9, #TOTAL]
    ldr     x14, [x9, #SLOTS]
    add     x15, x9, #STATE
    mov     x16, xzr
1:  cmp     x16, x13
    b.hs    4f
    ldr     x11, [x15]
    cmp     x11, #FREE
    b.ne    3f
2:  ldaxr   x11, [x15]
    cmp     x11, #FREE
    b.ne    3f
    mov     x11, #LENT
    stxr    w12, x11, [x15]
    cbnz    w12, 2b
    b       5f
3:  add     x15, x15, #8
    add     x16, x16, #1
    b       1b
4:  count   MISSED                      // nothing free: the last scrap buffer, or NULL where there is none
    cmp     x13, x14
    b.eq    7f
    sub     x16, x13, #1
    b       6f
5:  mrs     x11, tpidr_el0
    add     x10, x9, #THREAD >> 12, lsl #12
    add     x10, x10, #THREAD & 0xfff
    str     x11, [x10, x16, lsl #3]
    cmp     x16, x14
    b.lo    6f
    count   MISSED                      // a scrap buffer: what goes in there is lost
6:  ldr     x11, [x9, #SHIFT]
    lsl     x16, x16, x11
    ldr     x11, [x9, #ARENA]
    add     x16, x16, x11
    str     x16, [x0]
    ldr     x11, [x9, #SIZE]
    str     x11, [x1]
    ret
7:  str     xzr, [x0]
    str     xzr, [x1]
    ret

completed:                              // (x0: context, w1: stream, x2: uint8_t *buffer, x3: size, x4: valid bytes)
    hint    #34
    ldr     x9, control
    count   COMPLETED
    ldr     x10, [x9, #ARENA]
    sub     x10, x2, x10
    ldr     x11, [x9, #ARENA_BYTES]
    cmp     x10, x11
    b.hs    1f
    ldr     x12, [x9, #SIZE]
    sub     x13, x12, #1
    tst     x10, x13
    b.ne    1f
    ldr     x13, [x9, #SHIFT]
    lsr     x10, x10, x13
    add     x14, x9, #STATE
    add     x14, x14, x10, lsl #3
    ldar    x15, [x14]
    cmp     x15, #LENT
    b.ne    1f
    cmp     x4, x12
    csel    x4, x4, x12, ls
    add     x15, x9, #VALID >> 12, lsl #12
    add     x15, x15, #VALID & 0xfff
    str     x4, [x15, x10, lsl #3]
    ldr     x11, [x9, #SLOTS]
    cmp     x10, x11
    mov     x11, #FREE
    mov     x12, #FULL
    csel    x11, x12, x11, lo
    stlr    x11, [x14]
    ret
1:  count   FOREIGN
    ret

take:                                   // (x0: uint64_t out[3]) -> w0: 1 where a full buffer was found
    hint    #34
    ldr     x9, control
    ldr     x13, [x9, #SLOTS]
    add     x15, x9, #STATE
    mov     x16, xzr
1:  cmp     x16, x13
    b.hs    4f
    ldr     x11, [x15]
    cmp     x11, #FULL
    b.ne    3f
2:  ldaxr   x11, [x15]
    cmp     x11, #FULL
    b.ne    3f
    mov     x11, #TAKEN
    stxr    w12, x11, [x15]
    cbnz    w12, 2b
    b       5f
3:  add     x15, x15, #8
    add     x16, x16, #1
    b       1b
4:  mov     w0, wzr
    ret
5:  add     x10, x9, #VALID >> 12, lsl #12
    add     x10, x10, #VALID & 0xfff
    ldr     x11, [x10, x16, lsl #3]
    str     x11, [x0, #8]
    sub     x10, x10, #(VALID - THREAD) >> 12, lsl #12
    ldr     x11, [x10, x16, lsl #3]
    str     x11, [x0, #16]
    ldr     x11, [x9, #SHIFT]
    lsl     x16, x16, x11
    ldr     x11, [x9, #ARENA]
    add     x16, x16, x11
    str     x16, [x0]
    mov     w0, #1
    ret

give:                                   // (x0: uint8_t *buffer) -> w0: 1 where it had been taken
    hint    #34
    ldr     x9, control
    ldr     x10, [x9, #ARENA]
    sub     x10, x0, x10
    ldr     x11, [x9, #ARENA_BYTES]
    cmp     x10, x11
    b.hs    2f
    ldr     x11, [x9, #SHIFT]
    lsr     x10, x10, x11
    add     x14, x9, #STATE
    add     x14, x14, x10, lsl #3
    mov     x12, #FREE
1:  ldxr    x11, [x14]
    cmp     x11, #TAKEN
    b.ne    2f
    stlxr   w13, x12, [x14]
    cbnz    w13, 1b
    mov     w0, #1
    ret
2:  mov     w0, wzr
    ret

thread:                                 // () -> x0: the thread pointer of the caller
    hint    #34
    mrs     x0, tpidr_el0
    ret
""",
)

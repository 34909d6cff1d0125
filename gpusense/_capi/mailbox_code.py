"""The mailbox between CUPTI's threads and ours as machine code, with the assembly that it comes from. Data only.

``tests/unit/test_mailbox.py`` assembles the sources and compares. Six functions, position independent, that touch
nothing but their arguments and one control block whose address stands in the eight bytes before them. No lock, no
call, no allocation; every access to the control block and to the arena is bounded by numbers in the control block,
so that a forked child, in which it is all zeros, finds no buffer to hand out, takes none in and cannot fault.

Each buffer of the arena has a state that goes round FREE, LENT (to CUPTI), FULL, TAKEN (by the reader), FREE. There
is no queue that could overflow. Buffers behind the first SLOTS are scrap: lent where nothing else is free and CUPTI
cannot bear a refusal, never read.

``requested`` and ``completed`` are CUPTI's buffer callbacks (the first version of that interface); ``take``, ``give``,
``thread`` and ``newest`` are for our side. States change with acquire and release order, so that what a buffer holds,
its length and its thread are seen with the state.

``newest`` looks into the buffers that are lent: a CUPTI that reserves a record as its work is launched has the
correlation id in there when the launch returns. It steps over what is there by the table KINDS and keeps in CURSOR how
far it came in each; ``completed`` looks at the rest, so that no id is missed. Both keep the newest id they meet in
NEWEST. Buffers are handed out clean for that: ``give`` clears what was filled. ``newest``, ``take`` and ``give`` are
called with the GIL, one at a time, so a buffer is not cleared while it is looked into.
"""

from typing import NamedTuple

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


class Code(NamedTuple):
    """Machine code for one processor: the bytes, the offset of each function (0: there is none), and the source."""

    machine: bytes
    requested: int
    completed: int
    take: int
    give: int
    thread: int
    newest: int
    head: str
    source: str

    @property
    def assembly(self) -> str:
        """Complete source for ``as``, ``llvm-mc`` or ``clang``."""
        return self.head + CONSTANTS + self.source


X86_64 = Code(
    bytes.fromhex(
        "0000000000000000f30f1efa4c8b05edfffffff049ff404048c70200000000498b48084531c94939c973274b83bcc800"
        "010000017517b80100000041ba02000000f04f0fb194c800010000741549ffc1ebd4f049ff4050493b08744e4c8d49ff"
        "eb3264488b0425000000004b8984c8002100004d3b087207f049ff4050eb154d8d5101498b40604939c27608f04d0fb1"
        "506075f3498b481049d3e14d0348204c890f498b4018488906c331c0488907488906c3f30f1efa4c8b0d42fffffff049"
        "ff41484889d0492b4120493b4128735d4d8b51184d8d5aff4c85d87550498b491048d3e84983bcc10001000002753e4d"
        "39d04d0f47c24d8984c1004100004d89c24989c0498b94c100610000e85b0100004c89c0493b01b901000000ba030000"
        "000f42ca49898cc100010000c3f049ff4158c3f30f1efa4c8b05c2feffff498b084531c94939c973274b83bcc8000100"
        "00037517b80300000041ba04000000f04f0fb194c800010000740849ffc1ebd431c0c34b8b84c800410000488947084b"
        "8b84c80021000048894710498b481049d3e14d0348204c890fb801000000c3f30f1efa4c8b0556feffff4889fe492b70"
        "20493b7028734b498b481048d3ee4983bcf0000100000475394889f748d3e749037820498b8cf0004100004883c10748"
        "c1e90331c0f348ab498984f00061000049c784f00001000001000000b801000000c331c0c3f30f1efa64488b04250000"
        "0000c3f30f1efa4c8b0de2fdffff4531c04d3b4160732c4b83bcc10001000002751c4c89c04b8b94c1006100004d8b51"
        "18e8260000004b8994c10061000049ffc0ebce498b416831c94885c0480f48c1498b497048c1e1204809c8c3498b4910"
        "4989c349d3e34d03592048c7c7ffffffff488d4a084c39d17753418b0c1381e1ffffff7f744783f940733a498b8cc900"
        "81000089ce85f6742c488d04324c39d0772b48c1e92074184801d1418b0c0b85c9741a4885ff780689ce29fe780289cf"
        "4889c2ebac49c74170010000004885ff7819498b41684885c0780889f929c1780a7408f0490fb1796875ebc3"
    ),
    requested=0x008,
    completed=0x0B3,
    take=0x133,
    give=0x19F,
    thread=0x205,
    newest=0x213,
    head="    .intel_syntax noprefix\n",
    source="""
control:
    .quad 0

requested:                              # (rdi: uint8_t **buffer, rsi: size_t *size, rdx: size_t *max_records)
    endbr64
    mov     r8, [rip + control]
    lock inc qword ptr [r8 + REQUESTED]
    mov     qword ptr [rdx], 0
    mov     rcx, [r8 + TOTAL]
    xor     r9d, r9d
1:  cmp     r9, rcx
    jae     3f
    cmp     qword ptr [r8 + r9*8 + STATE], FREE
    jne     2f
    mov     eax, FREE
    mov     r10d, LENT
    lock cmpxchg [r8 + r9*8 + STATE], r10
    je      4f
2:  inc     r9
    jmp     1b
3:  lock inc qword ptr [r8 + MISSED]       # nothing free: the last scrap buffer, or NULL where there is none
    cmp     rcx, [r8 + SLOTS]
    je      6f
    lea     r9, [rcx - 1]
    jmp     5f
4:  mov     rax, fs:[0]
    mov     [r8 + r9*8 + THREAD], rax
    cmp     r9, [r8 + SLOTS]
    jb      7f
    lock inc qword ptr [r8 + MISSED]       # a scrap buffer: what goes in there is lost
    jmp     5f
7:  lea     r10, [r9 + 1]
    mov     rax, [r8 + HIGH]
8:  cmp     r10, rax
    jbe     5f
    lock cmpxchg [r8 + HIGH], r10
    jne     8b
5:  mov     rcx, [r8 + SHIFT]
    shl     r9, cl
    add     r9, [r8 + ARENA]
    mov     [rdi], r9
    mov     rax, [r8 + SIZE]
    mov     [rsi], rax
    ret
6:  xor     eax, eax
    mov     [rdi], rax
    mov     [rsi], rax
    ret

completed:                              # (rdi: context, esi: stream, rdx: uint8_t *buffer, rcx: size, r8: valid bytes)
    endbr64
    mov     r9, [rip + control]
    lock inc qword ptr [r9 + COMPLETED]
    mov     rax, rdx
    sub     rax, [r9 + ARENA]
    cmp     rax, [r9 + ARENA_BYTES]
    jae     1f
    mov     r10, [r9 + SIZE]
    lea     r11, [r10 - 1]
    test    rax, r11
    jnz     1f
    mov     rcx, [r9 + SHIFT]
    shr     rax, cl
    cmp     qword ptr [r9 + rax*8 + STATE], LENT
    jne     1f
    cmp     r8, r10
    cmova   r8, r10
    mov     [r9 + rax*8 + VALID], r8
    mov     r10, r8
    mov     r8, rax
    mov     rdx, [r9 + rax*8 + CURSOR]
    call    look
    mov     rax, r8
    cmp     rax, [r9 + SLOTS]
    mov     ecx, FREE
    mov     edx, FULL
    cmovb   ecx, edx
    mov     [r9 + rax*8 + STATE], rcx
    ret
1:  lock inc qword ptr [r9 + FOREIGN]
    ret

take:                                   # (rdi: uint64_t out[3]) -> eax: 1 where a full buffer was found
    endbr64
    mov     r8, [rip + control]
    mov     rcx, [r8 + SLOTS]
    xor     r9d, r9d
1:  cmp     r9, rcx
    jae     3f
    cmp     qword ptr [r8 + r9*8 + STATE], FULL
    jne     2f
    mov     eax, FULL
    mov     r10d, TAKEN
    lock cmpxchg [r8 + r9*8 + STATE], r10
    je      4f
2:  inc     r9
    jmp     1b
3:  xor     eax, eax
    ret
4:  mov     rax, [r8 + r9*8 + VALID]
    mov     [rdi + 8], rax
    mov     rax, [r8 + r9*8 + THREAD]
    mov     [rdi + 16], rax
    mov     rcx, [r8 + SHIFT]
    shl     r9, cl
    add     r9, [r8 + ARENA]
    mov     [rdi], r9
    mov     eax, 1
    ret

give:                                   # (rdi: uint8_t *buffer) -> eax: 1 where it had been taken; clears it
    endbr64
    mov     r8, [rip + control]
    mov     rsi, rdi
    sub     rsi, [r8 + ARENA]
    cmp     rsi, [r8 + ARENA_BYTES]
    jae     1f
    mov     rcx, [r8 + SHIFT]
    shr     rsi, cl
    cmp     qword ptr [r8 + rsi*8 + STATE], TAKEN
    jne     1f
    mov     rdi, rsi
    shl     rdi, cl
    add     rdi, [r8 + ARENA]
    mov     rcx, [r8 + rsi*8 + VALID]
    add     rcx, 7
    shr     rcx, 3
    xor     eax, eax
    rep stosq
    mov     [r8 + rsi*8 + CURSOR], rax
    mov     qword ptr [r8 + rsi*8 + STATE], FREE
    mov     eax, 1
    ret
1:  xor     eax, eax
    ret

thread:                                 # () -> rax: the thread pointer of the caller
    endbr64
    mov     rax, fs:[0]
    ret

newest:                                 # () -> rax: the newest id, 0 before the first; bit 32: some may be missing
    endbr64
    mov     r9, [rip + control]
    xor     r8d, r8d
1:  cmp     r8, [r9 + HIGH]
    jae     3f
    cmp     qword ptr [r9 + r8*8 + STATE], LENT
    jne     2f
    mov     rax, r8
    mov     rdx, [r9 + r8*8 + CURSOR]
    mov     r10, [r9 + SIZE]
    call    look
    mov     [r9 + r8*8 + CURSOR], rdx
2:  inc     r8
    jmp     1b
3:  mov     rax, [r9 + NEWEST]
    xor     ecx, ecx
    test    rax, rax
    cmovs   rax, rcx
    mov     rcx, [r9 + BLIND]
    shl     rcx, 32
    or      rax, rcx
    ret

look:                                   # (r9: control, rax: slot, rdx: from, r10: to) -> rdx: how far there is more
    mov     rcx, [r9 + SHIFT]
    mov     r11, rax
    shl     r11, cl
    add     r11, [r9 + ARENA]
    mov     rdi, -1                     # the newest id in here
1:  lea     rcx, [rdx + 8]
    cmp     rcx, r10
    ja      5f
    mov     ecx, [r11 + rdx]
    and     ecx, 0x7fffffff             # the upper bit stands until the work has ended
    jz      5f
    cmp     ecx, MAX_KINDS
    jae     4f
    mov     rcx, [r9 + rcx*8 + KINDS]
    mov     esi, ecx
    test    esi, esi
    jz      4f
    lea     rax, [rdx + rsi]
    cmp     rax, r10
    ja      5f
    shr     rcx, 32
    jz      3f
    add     rcx, rdx
    mov     ecx, [r11 + rcx]
    test    ecx, ecx
    jz      5f                          # it is just being written
    test    rdi, rdi
    js      2f
    mov     esi, ecx
    sub     esi, edi
    js      3f
2:  mov     edi, ecx
3:  mov     rdx, rax
    jmp     1b
4:  mov     qword ptr [r9 + BLIND], 1
5:  test    rdi, rdi
    js      8f
    mov     rax, [r9 + NEWEST]
6:  test    rax, rax
    js      7f
    mov     ecx, edi
    sub     ecx, eax                    # by distance: ids wrap
    js      8f
    jz      8f
7:  lock cmpxchg [r9 + NEWEST], rdi
    jne     6b
8:  ret
""",
)

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
    requested=0x008,
    completed=0x0F0,
    take=0x194,
    give=0x224,
    thread=0x278,
    newest=0,
    head="",
    source=r"""
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

#: By ``os.uname().machine``.
CODES = {"x86_64": X86_64, "aarch64": AARCH64}

"""The functions of a profiler that NCCL calls, as machine code with its assembly. Data only.

NCCL calls them on the threads that launch collectives and on its own, with or without the GIL, for as long as the
process lives. Each collective, send or receive gets a slot of a table: what NCCL says of it, when the host began and
ended its launch, and for each channel when its part began and ended on the device. A slot that is still in use is not
taken; what finds none is counted. A handle is the address of a slot with the low bits of its generation, which is the
ticket without the slot's number; of a channel's part, the address of its times plus 1; 2 for anything else. By the
generation a slot may be taken from a collective of whose channels nothing was told: if one comes after all, it begins
in nobody else's slot.

The functions are those of ncclProfiler_v2_t to ncclProfiler_v6_t in NCCL's profiler interface
(https://github.com/NVIDIA/nccl, ``plugins/profiler``); versions differ in ``init`` alone.
``tests/backends/nccl/test_code.py`` assembles the source and compares.
"""

import struct

from .executable import Code

# The control block: eight-byte numbers at these offsets.
ASKED = 0x00  # slots asked for so far
TABLE = 0x08
SLOT_MASK = 0x10  # number of slots, a power of two, minus 1
LOST = 0x18  # launches that found none free
EVENTS = 0x20  # what NCCL is asked for, see EVENT_*
COMMUNICATORS = 0x28  # rows asked for so far
ROWS = 0x30
ROW_COUNT = 0x38
CLOCK = 0x40  # address of clock_gettime
SWITCH = 0x48  # address of the int from which NCCL takes EVENTS at each call; 0 before the first communicator
LATE = 0x50  # channels that began after their collective was given up
CONTROL_BYTES = 0x58

# A row of a communicator.
ROW_BYTES = 128
ROW_STATE = 0  # 1: in use, 2: destroyed
ROW_ID, ROW_VERSION, ROW_NODES, ROW_RANKS, ROW_RANK = 8, 16, 20, 24, 28  # the id has 8 bytes, the others 4
ROW_NAME, ROW_NAME_BYTES = 32, 96

# A slot. Times of the host are a timespec of CLOCK_MONOTONIC, those of the device nanoseconds of its global timer.
SLOT_BYTES = 2048  # a power of two, and slots are aligned to it
STATE = 0x00
FREE, BEGUN_BY_HOST, LAUNCHED, GIVEN_UP = range(4)  # no channel begins in the first and the last
TICKET, ROW, BEGUN, ENDED = 0x08, 0x10, 0x18, 0x28
CHANNELS_BEGUN, CHANNELS_ENDED = 0x38, 0x3C  # 4 bytes each
THREAD = 0x40  # the thread pointer of the one that launched it
FIRST, FIRST_SEEN, LAST_SEEN = 0x48, 0x50, 0x60  # the first channel's start, when it was told; when the last end was
EVENT, EVENT_BYTES = 0x80, 128
CHANNELS, CHANNEL_COUNT = 0x400, 64  # of each the device's start and end, 8 bytes each

EVENT_COLLECTIVE, EVENT_POINT_TO_POINT, EVENT_CHANNEL = 1 << 1, 1 << 2, 1 << 6


X86_64 = Code(
    bytes.fromhex(
        "f30f1efab806000000eb3df30f1efab805000000eb32f30f1efab8040000004989f24889ce4889d14c89d2eb1bf30f1e"
        "fab803000000eb09f30f1efab8020000004889f231f631c94c8b1d31020000498953484d8b532044891248c707000000"
        "0041ba01000000f04d0fc153284d3b5338734549c1e2074d0353304c891749897208418942104589421445894a188b44"
        "24084189421c4885c9741631c00fb6140185d2740c4188540220ffc083f85f72ec49c7020100000031c0c3f30f1efa4c"
        "8b1dba0100000fb60283f8400f8481000000a8060f84f500000041ba0004000041b801000000f04d0fc1034d89c14d23"
        "4b1049c1e10b4d034b0831c0b901000000f0490fb109740a41ffca75d3e9b80000004d8941084989791064488b042500"
        "0000004989414049c1e8094181e0fc0700004d09c84c8906498db9800000004889d6b910000000f348a5498d7118e985"
        "0000004c8b42084d85c0747341f6c003756d4d89c14981e100f8ffff498b0148ffc84883f801774b498b410848c1e809"
        "4c31c0a9fc07000075394d89c80fb6421883e03fc1e004498d8c0001040000488b4220488941ff48890eb901000000f0"
        "410fc1483885c9752a49894048498d7050eb15f049ff4350eb05f049ff431848c70602000000eb0bbf010000005041ff"
        "53405931c0c3f30f1efa4885ff744c40f6c70275464c8b1d8400000040f6c701751f4881e700f8ffff57488d7728bf01"
        "00000041ff53405f48c70702000000eb1a4881e700f8ffff57488d7760bf0100000041ff53405ff0ff473c31c0c3f30f"
        "1efa83fe16751240f6c701740c4885d27407488b024889470731c0c3f30f1efa4885ff740748c7070200000031c0c3f3"
        "0f1efa64488b042500000000c3cccccc0000000000000000"
    ),
    entries={
        "init6": 0x0,
        "init5": 0xB,
        "init4": 0x16,
        "init3": 0x2D,
        "init2": 0x38,
        "start": 0xBB,
        "stop": 0x1E6,
        "state": 0x23E,
        "finalize": 0x25C,
        "thread": 0x26F,
    },
    assembly="""
    .intel_syntax noprefix
init6:                                  # (context *, id, mask *, name, nodes, ranks, rank, log)
    endbr64
    mov     eax, 6
    jmp     2f
init5:                                  # as init6
    endbr64
    mov     eax, 5
    jmp     2f
init4:                                  # (context *, mask *, name, id, nodes, ranks, rank, log)
    endbr64
    mov     eax, 4
    mov     r10, rsi
    mov     rsi, rcx
    mov     rcx, rdx
    mov     rdx, r10
    jmp     2f
init3:                                  # (context *, mask *)
    endbr64
    mov     eax, 3
    jmp     1f
init2:                                  # as init3
    endbr64
    mov     eax, 2
1:  mov     rdx, rsi
    xor     esi, esi
    xor     ecx, ecx
2:  mov     r11, [rip + control]
    mov     [r11 + 0x48], rdx           # where NCCL keeps the events it is asked for
    mov     r10, [r11 + 0x20]
    mov     [rdx], r10d
    mov     qword ptr [rdi], 0
    mov     r10d, 1
    lock xadd [r11 + 0x28], r10
    cmp     r10, [r11 + 0x38]
    jae     5f
    shl     r10, 7
    add     r10, [r11 + 0x30]
    mov     [rdi], r10
    mov     [r10 + 8], rsi
    mov     [r10 + 16], eax
    mov     [r10 + 20], r8d
    mov     [r10 + 24], r9d
    mov     eax, [rsp + 8]
    mov     [r10 + 28], eax
    test    rcx, rcx
    jz      4f
    xor     eax, eax
3:  movzx   edx, byte ptr [rcx + rax]
    test    edx, edx
    jz      4f
    mov     [r10 + rax + 32], dl
    inc     eax
    cmp     eax, 95
    jb      3b
4:  mov     qword ptr [r10], 1
5:  xor     eax, eax
    ret
start:                                  # (context, handle *, event)
    endbr64
    mov     r11, [rip + control]
    movzx   eax, byte ptr [rdx]
    cmp     eax, 64
    je      6f
    test    al, 6
    jz      8f
    mov     r10d, 1024                  # so many slots in a row may be in use
12: mov     r8d, 1
    lock xadd [r11], r8
    mov     r9, r8
    and     r9, [r11 + 0x10]
    shl     r9, 11
    add     r9, [r11 + 8]
    xor     eax, eax
    mov     ecx, 1
    lock cmpxchg [r9], rcx              # whoever finds it free has it
    je      13f
    dec     r10d
    jnz     12b
    jmp     7f
13: mov     [r9 + 8], r8
    mov     [r9 + 0x10], rdi
    mov     rax, fs:[0]
    mov     [r9 + 0x40], rax
    shr     r8, 9
    and     r8d, 0x7fc
    or      r8, r9
    mov     [rsi], r8
    lea     rdi, [r9 + 0x80]
    mov     rsi, rdx
    mov     ecx, 16
    rep movsq
    lea     rsi, [r9 + 0x18]
    jmp     9f
6:  mov     r8, [rdx + 8]               # a channel of a collective
    test    r8, r8
    jz      8f
    test    r8b, 3
    jnz     8f
    mov     r9, r8
    and     r9, -2048
    mov     rax, [r9]
    dec     rax
    cmp     rax, 1
    ja      11f                         # the slot is free or given up
    mov     rax, [r9 + 8]
    shr     rax, 9
    xor     rax, r8
    test    eax, 0x7fc
    jnz     11f                         # or another's by now
    mov     r8, r9
    movzx   eax, byte ptr [rdx + 24]
    and     eax, 63
    shl     eax, 4
    lea     rcx, [r8 + rax + 0x401]
    mov     rax, [rdx + 32]
    mov     [rcx - 1], rax
    mov     [rsi], rcx
    mov     ecx, 1
    lock xadd [r8 + 0x38], ecx
    test    ecx, ecx
    jnz     10f
    mov     [r8 + 0x48], rax
    lea     rsi, [r8 + 0x50]
    jmp     9f
11: lock inc qword ptr [r11 + 0x50]
    jmp     8f
7:  lock inc qword ptr [r11 + 0x18]
8:  mov     qword ptr [rsi], 2          # nothing is kept of it, nor of what belongs to it
    jmp     10f
9:  mov     edi, 1                      # CLOCK_MONOTONIC
    push    rax
    call    [r11 + 0x40]
    pop     rcx
10: xor     eax, eax
    ret
stop:                                   # (handle)
    endbr64
    test    rdi, rdi
    jz      2f
    test    dil, 2
    jnz     2f
    mov     r11, [rip + control]
    test    dil, 1
    jnz     1f
    and     rdi, -2048
    push    rdi
    lea     rsi, [rdi + 0x28]
    mov     edi, 1
    call    [r11 + 0x40]
    pop     rdi
    mov     qword ptr [rdi], 2
    jmp     2f
1:  and     rdi, -2048
    push    rdi
    lea     rsi, [rdi + 0x60]
    mov     edi, 1
    call    [r11 + 0x40]
    pop     rdi
    lock inc dword ptr [rdi + 0x3c]
2:  xor     eax, eax
    ret
state:                                  # (handle, state, what is new)
    endbr64
    cmp     esi, 22
    jne     1f
    test    dil, 1
    jz      1f
    test    rdx, rdx
    jz      1f
    mov     rax, [rdx]
    mov     [rdi + 7], rax
1:  xor     eax, eax
    ret
finalize:                               # (context)
    endbr64
    test    rdi, rdi
    jz      1f
    mov     qword ptr [rdi], 2
1:  xor     eax, eax
    ret
thread:                                 # (): the thread pointer of the caller
    endbr64
    mov     rax, fs:[0]
    ret
    .balign 8, 0xcc
control:
    .quad   0
""",
)

AARCH64 = Code(
    bytes.fromhex(
        "5f2403d5c8008052130000145f2403d5a8008052100000145f2403d588008052ea0301aae10303aae30302aae2030aaa"
        "090000145f2403d568008052030000145f2403d548008052e20301aae1031faae3031faaa9150058222500f92a1140f9"
        "4a0000b91f0000f92ba100916c7d5fc88d0500916d7d0ec8aeffff352d1d40f99f010deb420200542d1940f9ac1d0c8b"
        "0c0000f9810500f98811022985190329230100b4ea031faa8b8100916d686a38ad0000346d692a384a0500915f7d01f1"
        "63ffff542d0080d28dfd9fc8e0031f2ac0035fd65f2403d5891100584a0040395f010171c00400545f051f7280090054"
        "0f808052287d5fc80b0500912b7d0cc8acffff352a0940f90a010a8a2b0540f96a2d0a8b4bfd5fc8ab0000b52b0080d2"
        "4b7d0cc88cffff3504000014ef05007121feff5435000014480500f9400900f94bd03bd54b2100f90bfd49d36b217e92"
        "6b010aaa2b0000f94c0102910d0180524e3cc1a88e3d81a8ad050071a1ffff54bf3a03d5416100912c000014480440f9"
        "e80400b41f0540f2a10400540ad175924bfddfc86b0500d17f0500f1a80200544b0540f90b254bca7f217ef221020054"
        "4b6040396b1540924c110b8b8c0510914d1040f98df11ff82c0000f94ee10091cbfd5f886f050011cffd1088b0ffff35"
        "0b0300354d2500f9414101910f0000142a4101914b7d5fc86b0500914b7d0cc8acffff35060000142a6100914b7d5fc8"
        "6b0500914b7d0cc8acffff354b0080d22b0000f907000014fd7bbfa9fd030091282140f92000805200013fd6fd7bc1a8"
        "e0031f2ac0035fd65f2403d5600300b440030837a9050058fd7bbea9fd030091e20300aa00d07592e00b00f9282140f9"
        "0201003701a000912000805200013fd6e00b40f9410080d201fc9fc80a000014018001912000805200013fd6e00b40f9"
        "00f0009101fc5f882104001101fc0288a2ffff35fd7bc2a8e0031f2ac0035fd65f2403d53f580071a100005480000036"
        "620000b4430040f9037000f8e0031f2ac0035fd65f2403d5600000b4410080d201fc9fc8e0031f2ac0035fd65f2403d5"
        "40d03bd5c0035fd60000000000000000"
    ),
    entries={
        "init6": 0x0,
        "init5": 0xC,
        "init4": 0x18,
        "init3": 0x34,
        "init2": 0x40,
        "start": 0xD4,
        "stop": 0x248,
        "state": 0x2C0,
        "finalize": 0x2E4,
        "thread": 0x2FC,
    },
    assembly="""
    .macro count at
    add     x10, x9, #\\at
99: ldxr    x11, [x10]
    add     x11, x11, #1
    stxr    w12, x11, [x10]
    cbnz    w12, 99b
    .endm

init6:                                  // (x0: context *, x1: id, x2: mask *, x3: name, w4: nodes, w5: ranks, w6: rank)
    hint    #34                         // bti c
    mov     w8, #6
    b       2f
init5:                                  // as init6
    hint    #34
    mov     w8, #5
    b       2f
init4:                                  // (x0: context *, x1: mask *, x2: name, x3: id, w4: nodes, w5: ranks, w6: rank)
    hint    #34
    mov     w8, #4
    mov     x10, x1
    mov     x1, x3
    mov     x3, x2
    mov     x2, x10
    b       2f
init3:                                  // (x0: context *, x1: mask *)
    hint    #34
    mov     w8, #3
    b       1f
init2:                                  // as init3
    hint    #34
    mov     w8, #2
1:  mov     x2, x1
    mov     x1, xzr
    mov     x3, xzr
2:  ldr     x9, control
    str     x2, [x9, #0x48]             // where NCCL keeps the events it is asked for
    ldr     x10, [x9, #0x20]
    str     w10, [x2]
    str     xzr, [x0]
    add     x11, x9, #0x28
3:  ldxr    x12, [x11]
    add     x13, x12, #1
    stxr    w14, x13, [x11]
    cbnz    w14, 3b
    ldr     x13, [x9, #0x38]
    cmp     x12, x13
    b.hs    6f
    ldr     x13, [x9, #0x30]
    add     x12, x13, x12, lsl #7
    str     x12, [x0]
    str     x1, [x12, #8]
    stp     w8, w4, [x12, #16]
    stp     w5, w6, [x12, #24]
    cbz     x3, 5f
    mov     x10, xzr
    add     x11, x12, #32
4:  ldrb    w13, [x3, x10]
    cbz     w13, 5f
    strb    w13, [x11, x10]
    add     x10, x10, #1
    cmp     x10, #95
    b.lo    4b
5:  mov     x13, #1
    stlr    x13, [x12]
6:  mov     w0, wzr
    ret

start:                                  // (x0: context, x1: handle *, x2: event)
    hint    #34
    ldr     x9, control
    ldrb    w10, [x2]
    cmp     w10, #64
    b.eq    6f
    tst     w10, #6
    b.eq    8f
    mov     w15, #1024                  // so many slots in a row may be in use
1:  ldxr    x8, [x9]
    add     x11, x8, #1
    stxr    w12, x11, [x9]
    cbnz    w12, 1b
    ldr     x10, [x9, #0x10]
    and     x10, x8, x10
    ldr     x11, [x9, #8]
    add     x10, x11, x10, lsl #11
2:  ldaxr   x11, [x10]
    cbnz    x11, 3f
    mov     x11, #1
    stxr    w12, x11, [x10]             // whoever finds it free has it
    cbnz    w12, 2b
    b       4f
3:  subs    w15, w15, #1
    b.ne    1b
    b       7f
4:  str     x8, [x10, #8]
    str     x0, [x10, #0x10]
    mrs     x11, tpidr_el0
    str     x11, [x10, #0x40]
    lsr     x11, x8, #9
    and     x11, x11, #0x7fc
    orr     x11, x11, x10
    str     x11, [x1]
    add     x12, x10, #0x80
    mov     w13, #8
5:  ldp     x14, x15, [x2], #16
    stp     x14, x15, [x12], #16
    subs    w13, w13, #1
    b.ne    5b
    dmb     ishst                       // who sees when it began sees the rest
    add     x1, x10, #0x18
    b       9f
6:  ldr     x8, [x2, #8]                // a channel of a collective
    cbz     x8, 8f
    tst     x8, #3
    b.ne    8f
    and     x10, x8, #-2048
    ldar    x11, [x10]
    sub     x11, x11, #1
    cmp     x11, #1
    b.hi    11f                         // the slot is free or given up
    ldr     x11, [x10, #8]
    eor     x11, x8, x11, lsr #9
    tst     x11, #0x7fc
    b.ne    11f                         // or another's by now
    ldrb    w11, [x2, #24]
    and     x11, x11, #63
    add     x12, x10, x11, lsl #4
    add     x12, x12, #0x401
    ldr     x13, [x2, #32]
    stur    x13, [x12, #-1]
    str     x12, [x1]
    add     x14, x10, #0x38
12: ldaxr   w11, [x14]
    add     w15, w11, #1
    stlxr   w16, w15, [x14]
    cbnz    w16, 12b
    cbnz    w11, 10f
    str     x13, [x10, #0x48]
    add     x1, x10, #0x50
    b       9f
11: count   0x50
    b       8f
7:  count   0x18
8:  mov     x11, #2                     // nothing is kept of it, nor of what belongs to it
    str     x11, [x1]
    b       10f
9:  stp     x29, x30, [sp, #-16]!
    mov     x29, sp
    ldr     x8, [x9, #0x40]
    mov     w0, #1                      // CLOCK_MONOTONIC
    blr     x8
    ldp     x29, x30, [sp], #16
10: mov     w0, wzr
    ret

stop:                                   // (x0: handle)
    hint    #34
    cbz     x0, 4f
    tbnz    w0, #1, 4f
    ldr     x9, control
    stp     x29, x30, [sp, #-32]!
    mov     x29, sp
    mov     x2, x0
    and     x0, x0, #-2048
    str     x0, [sp, #16]
    ldr     x8, [x9, #0x40]
    tbnz    w2, #0, 1f
    add     x1, x0, #0x28
    mov     w0, #1
    blr     x8
    ldr     x0, [sp, #16]
    mov     x1, #2
    stlr    x1, [x0]
    b       3f
1:  add     x1, x0, #0x60
    mov     w0, #1
    blr     x8
    ldr     x0, [sp, #16]
    add     x0, x0, #0x3c
2:  ldaxr   w1, [x0]
    add     w1, w1, #1
    stlxr   w2, w1, [x0]
    cbnz    w2, 2b
3:  ldp     x29, x30, [sp], #32
4:  mov     w0, wzr
    ret

state:                                  // (x0: handle, w1: state, x2: what is new)
    hint    #34
    cmp     w1, #22
    b.ne    1f
    tbz     w0, #0, 1f
    cbz     x2, 1f
    ldr     x3, [x2]
    stur    x3, [x0, #7]
1:  mov     w0, wzr
    ret

finalize:                               // (x0: context)
    hint    #34
    cbz     x0, 1f
    mov     x1, #2
    stlr    x1, [x0]
1:  mov     w0, wzr
    ret

thread:                                 // () -> x0: the thread pointer of the caller
    hint    #34
    mrs     x0, tpidr_el0
    ret
    .balign 8
control:
    .quad   0
""",
)

CODES = {"x86_64": X86_64, "aarch64": AARCH64}


def image(code: Code, control: int) -> bytes:
    """The code as it is to be mapped, for the control block at this address."""
    return code.machine[:-8] + struct.pack("<Q", control)

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
        "fab803000000eb09f30f1efab8020000004889f231f631c94c8b1d21020000498953484d8b532044891248c707000000"
        "0041ba01000000f04d0fc153284d3b5338734549c1e2074d0353304c891749897208418942104589421445894a188b44"
        "24084189421c4885c9741631c00fb6140185d2740c4188540220ffc083f85f72ec49c7020100000031c0c3f30f1efa4c"
        "8b1daa0100000fb60283f8400f8481000000a8060f84f500000041ba0004000041b801000000f04d0fc1034d89c14d23"
        "4b1049c1e10b4d034b0831c0b901000000f0490fb109740a41ffca75d3e9b80000004d8941084989791064488b042500"
        "0000004989414049c1e8094181e0fc0700004d09c84c8906498db9800000004889d6b910000000f348a5498d7118e985"
        "0000004c8b42084d85c0747341f6c003756d4d89c14981e100f8ffff498b0148ffc84883f801774b498b410848c1e809"
        "4c31c0a9fc07000075394d89c80fb6421883e03fc1e004498d8c0001040000488b4220488941ff48890eb901000000f0"
        "410fc1483885c9752a49894048498d7050eb15f049ff4350eb05f049ff431848c70602000000eb0bbf010000005041ff"
        "53405931c0c3f30f1efa4885ff744c40f6c70275464c8b1d7400000040f6c701751f4881e700f8ffff57488d7728bf01"
        "00000041ff53405f48c70702000000eb1a4881e700f8ffff57488d7760bf0100000041ff53405ff0ff473c31c0c3f30f"
        "1efa83fe16751240f6c701740c4885d27407488b024889470731c0c3f30f1efa4885ff740748c7070200000031c0c3cc"
        "0000000000000000"
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
    .balign 8, 0xcc
control:
    .quad   0
""",
)

CODES = {"x86_64": X86_64}


def image(code: Code, control: int) -> bytes:
    """The code as it is to be mapped, for the control block at this address."""
    return code.machine[:-8] + struct.pack("<Q", control)

"""The callback that notes the nodes of CUDA graphs as they are made, as machine code with its assembly. Data only.

CUPTI calls it on the thread that captures or instantiates, which may or may not hold the GIL, and perhaps under locks:
a Python callback could hang there. It asks CUPTI for the ids of the node and of the one it was cloned from, takes the
next row of a table, and returns; what does not fit is only counted. ``tests/backends/cupti/test_mailbox.py``
assembles the sources and compares.
"""

from .executable import Code

# The control block: eight-byte numbers at these offsets.
GET_ID = 0x00  # address of cuptiGetGraphNodeId
COUNT = 0x08  # rows asked for so far, those included that did not fit
ROOM = 0x10
TABLE = 0x18
CONTROL_BYTES = 0x20

ROW_NUMBERS = 4  # node id, id of the node it was cloned from or 0, thread pointer, event


X86_64 = Code(
    bytes.fromhex(
        "f30f1efa53415441554883ec104889fb4189d44c8b691031c04889042448894424084d85ed7453498b7d104889e6ff13"
        "498b7d184885ff7407488d742408ff13b801000000f0480fc14308483b4310732948c1e00548034318488b4c24084889"
        "480864488b0c2500000000488948104c896018488b0c244889084883c410415d415c5bc3"
    ),
    entries={"log": 0},
    assembly="""
    .intel_syntax noprefix
log:                                    # (rdi: control, esi: domain, edx: event, rcx: data)
    endbr64
    push    rbx
    push    r12
    push    r13
    sub     rsp, 16
    mov     rbx, rdi
    mov     r12d, edx
    mov     r13, [rcx + 16]
    xor     eax, eax
    mov     [rsp], rax
    mov     [rsp + 8], rax
    test    r13, r13
    jz      2f
    mov     rdi, [r13 + 16]
    mov     rsi, rsp
    call    [rbx]
    mov     rdi, [r13 + 24]
    test    rdi, rdi
    jz      1f
    lea     rsi, [rsp + 8]
    call    [rbx]
1:  mov     eax, 1
    lock xadd [rbx + 8], rax
    cmp     rax, [rbx + 16]
    jae     2f
    shl     rax, 5
    add     rax, [rbx + 24]
    mov     rcx, [rsp + 8]
    mov     [rax + 8], rcx
    mov     rcx, fs:[0]
    mov     [rax + 16], rcx
    mov     [rax + 24], r12
    mov     rcx, [rsp]
    mov     [rax], rcx
2:  add     rsp, 16
    pop     r13
    pop     r12
    pop     rbx
    ret
""",
)

AARCH64 = Code(
    bytes.fromhex(
        "5f2403d5fd7bbca9fd030091f35301a9f51300f9ff7f03a9f30300aaf403022a750840f9150300b4a00a40f9e1c30091"
        "690240f920013fd6a00e40f9800000b4e1e30091690240f920013fd6692200912a7d5fc84b0500912b7d0cc8acffff35"
        "6b0a40f95f010bebe20000546b0e40f96b150a8bec3743a94ed03bd56c3500a96e5101a9f51340f9f35341a9fd7bc4a8"
        "c0035fd6"
    ),
    entries={"log": 0},
    assembly="""
    .arch armv8.5-a
log:                                    // (x0: control, w1: domain, w2: event, x3: data)
    bti     c
    stp     x29, x30, [sp, -64]!
    mov     x29, sp
    stp     x19, x20, [sp, 16]
    str     x21, [sp, 32]
    stp     xzr, xzr, [sp, 48]
    mov     x19, x0
    mov     w20, w2
    ldr     x21, [x3, 16]
    cbz     x21, 3f
    ldr     x0, [x21, 16]
    add     x1, sp, 48
    ldr     x9, [x19]
    blr     x9
    ldr     x0, [x21, 24]
    cbz     x0, 1f
    add     x1, sp, 56
    ldr     x9, [x19]
    blr     x9
1:  add     x9, x19, 8
2:  ldxr    x10, [x9]
    add     x11, x10, 1
    stxr    w12, x11, [x9]
    cbnz    w12, 2b
    ldr     x11, [x19, 16]
    cmp     x10, x11
    b.hs    3f
    ldr     x11, [x19, 24]
    add     x11, x11, x10, lsl 5
    ldp     x12, x13, [sp, 48]
    mrs     x14, tpidr_el0
    stp     x12, x13, [x11]
    stp     x14, x20, [x11, 16]
3:  ldr     x21, [sp, 32]
    ldp     x19, x20, [sp, 16]
    ldp     x29, x30, [sp], 64
    ret
""",
)

CODES = {"x86_64": X86_64, "aarch64": AARCH64}

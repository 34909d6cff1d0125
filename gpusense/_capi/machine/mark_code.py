"""Makes a mark on a stream in one call, as machine code with its assembly. Data only.

At the end of a block that the device times, the driver is asked three things, and the clock is read. From Python each
of these would be a call of its own, with the GIL given up and waited for again. Nothing is kept but what is on the
stack.
``tests/backends/block_times/test_mark_code.py`` assembles the sources and compares.
"""

import struct
from collections.abc import Sequence

from .executable import Code

#: Functions whose addresses stand behind the code.
SYMBOLS = ("cuCtxGetCurrent", "cuStreamIsCapturing", "cuEventRecord", "clock_gettime")
#: Where no mark was made: which of the calls said so, above its answer, and all of it negative.
STEP_BITS = 16
OTHER_CONTEXT, IS_CAPTURED, NOT_RECORDED = 1, 2, 3

X86_64 = Code(
    bytes.fromhex(
        "f30f1efa535541544883ec104889fb4889f54989d44889e7ff1572000000b90000010085c0755b483b1c24755548c704"
        "24000000004889ef4889e6ff1557000000b90000020085c07538833c240075324c89e74889eeff1544000000b9000003"
        "0085c0751dbf010000004889e6ff15350000004869042400ca9a3b4803442408eb0501c848f7d84883c410415c5d5bc3"
        "0000000000000000000000000000000000000000000000000000000000000000"
    ),
    entries={"mark": 0},
    assembly="""
    .intel_syntax noprefix
mark:                                   # (context, stream, event) -> monotonic nanoseconds, or why not
    endbr64
    push    rbx
    push    rbp
    push    r12
    sub     rsp, 16
    mov     rbx, rdi
    mov     rbp, rsi
    mov     r12, rdx
    mov     rdi, rsp
    call    [rip + 3f]
    mov     ecx, 0x10000
    test    eax, eax
    jnz     1f
    cmp     rbx, [rsp]
    jne     1f
    mov     qword ptr [rsp], 0
    mov     rdi, rbp
    mov     rsi, rsp
    call    [rip + 4f]
    mov     ecx, 0x20000
    test    eax, eax
    jnz     1f
    cmp     dword ptr [rsp], 0
    jne     1f
    mov     rdi, r12
    mov     rsi, rbp
    call    [rip + 5f]
    mov     ecx, 0x30000
    test    eax, eax
    jnz     1f
    mov     edi, 1                      # CLOCK_MONOTONIC
    mov     rsi, rsp
    call    [rip + 6f]
    imul    rax, [rsp], 1000000000
    add     rax, [rsp + 8]
    jmp     2f
1:  add     eax, ecx
    neg     rax
2:  add     rsp, 16
    pop     r12
    pop     rbp
    pop     rbx
    ret
    .balign 8, 0xcc
3:  .quad   0                           # cuCtxGetCurrent
4:  .quad   0                           # cuStreamIsCapturing
5:  .quad   0                           # cuEventRecord
6:  .quad   0                           # clock_gettime
""",
)

AARCH64 = Code(
    bytes.fromhex(
        "5f2403d5fd7bbca9fd030091f35301a9f51300f9f30300aaf40301aaf50302aae0c30091a904005820013fd62800a052"
        "80030035e91b40f93f0113eb21030054ff1b00f9e00314aae1c30091a903005820013fd64800a05240020035e93340b9"
        "09020035e00315aae10314aae902005820013fd66800a0524001003520008052e1c300916902005820013fd6e00743a9"
        "094099524973a7720004099b030000140000080be00300cbf51340f9f35341a9fd7bc4a8c0035fd60000000000000000"
        "000000000000000000000000000000000000000000000000"
    ),
    entries={"mark": 0},
    assembly="""
mark:                                   // (context, stream, event) -> monotonic nanoseconds, or why not
    hint    #34                         // bti c
    stp     x29, x30, [sp, #-64]!
    mov     x29, sp
    stp     x19, x20, [sp, #16]
    str     x21, [sp, #32]
    mov     x19, x0
    mov     x20, x1
    mov     x21, x2
    add     x0, sp, #48
    ldr     x9, 3f
    blr     x9
    mov     w8, #0x10000
    cbnz    w0, 1f
    ldr     x9, [sp, #48]
    cmp     x9, x19
    b.ne    1f
    str     xzr, [sp, #48]
    mov     x0, x20
    add     x1, sp, #48
    ldr     x9, 4f
    blr     x9
    mov     w8, #0x20000
    cbnz    w0, 1f
    ldr     w9, [sp, #48]
    cbnz    w9, 1f
    mov     x0, x21
    mov     x1, x20
    ldr     x9, 5f
    blr     x9
    mov     w8, #0x30000
    cbnz    w0, 1f
    mov     w0, #1                      // CLOCK_MONOTONIC
    add     x1, sp, #48
    ldr     x9, 6f
    blr     x9
    ldp     x0, x1, [sp, #48]
    movz    w9, #0xca00
    movk    w9, #0x3b9a, lsl #16        // 1000000000
    madd    x0, x0, x9, x1
    b       2f
1:  add     w0, w0, w8
    neg     x0, x0
2:  ldr     x21, [sp, #32]
    ldp     x19, x20, [sp, #16]
    ldp     x29, x30, [sp], #64
    ret
    .balign 8
3:  .quad   0                           // cuCtxGetCurrent
4:  .quad   0                           // cuStreamIsCapturing
5:  .quad   0                           // cuEventRecord
6:  .quad   0                           // clock_gettime
""",
)

CODES = {"x86_64": X86_64, "aarch64": AARCH64}


def image(code: Code, addresses: Sequence[int]) -> bytes:
    """The code as it is to be mapped, for the functions of :data:`SYMBOLS`."""
    return code.machine[: -8 * len(SYMBOLS)] + struct.pack(f"<{len(SYMBOLS)}Q", *addresses)

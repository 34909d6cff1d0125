"""A clock for CUPTI that gives wall-clock nanoseconds, as machine code with its assembly. Data only.

CUPTI stamps records by that clock itself, unless a tool has given it another: torch.profiler gives it the processor's
cycle counter and leaves it there. CUPTI calls the function from any thread, with or without the GIL, for as long as the
process lives. The address of ``clock_gettime`` stands behind the code.
``tests/backends/cupti/test_mailbox.py`` assembles the sources and compares.
"""

import struct

from .executable import Code

X86_64 = Code(
    bytes.fromhex("f30f1efa4883ec1831ff4889e6ff15150000004869042400ca9a3b48034424084883c418c3cccccc0000000000000000"),
    entries={"now": 0},
    assembly="""
    .intel_syntax noprefix
now:                                    # () -> nanoseconds since the epoch
    endbr64
    sub     rsp, 24
    xor     edi, edi                    # CLOCK_REALTIME
    mov     rsi, rsp
    call    [rip + 1f]
    imul    rax, [rsp], 1000000000
    add     rax, [rsp + 8]
    add     rsp, 24
    ret
    .balign 8, 0xcc
1:  .quad   0                           # clock_gettime
""",
)

AARCH64 = Code(
    bytes.fromhex(
        "5f2403d5fd7bbea9fd03009100008052e14300912901005820013fd6e00741a9094099524973a7720004099bfd7bc2a8"
        "c0035fd61f2003d50000000000000000"
    ),
    entries={"now": 0},
    assembly="""
now:                                    // () -> nanoseconds since the epoch
    hint    #34                         // bti c
    stp     x29, x30, [sp, #-32]!
    mov     x29, sp
    mov     w0, #0                      // CLOCK_REALTIME
    add     x1, sp, #16
    ldr     x9, 1f
    blr     x9
    ldp     x0, x1, [sp, #16]
    movz    w9, #0xca00
    movk    w9, #0x3b9a, lsl #16        // 1000000000
    madd    x0, x0, x9, x1
    ldp     x29, x30, [sp], #32
    ret
    .balign 8
1:  .quad   0                           // clock_gettime
""",
)

CODES = {"x86_64": X86_64, "aarch64": AARCH64}


def image(code: Code, clock_gettime: int) -> bytes:
    """The code as it is to be mapped."""
    return code.machine[:-8] + struct.pack("<Q", clock_gettime)

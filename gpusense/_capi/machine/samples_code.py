"""Reads the samples of an image in one call, as machine code with its assembly. Data only.

For each sample CUPTI is asked for its times and for the values of its metrics. From Python each of the two calls would
give the GIL up and wait for it again, a thousand times a second while the program computes; here all samples of an
image are one call. Nothing is called but the two functions of the control block.
``tests/backends/cupti/test_sampler.py`` assembles the sources and compares.
"""

from .executable import Code

# The control block: eight-byte numbers at these offsets.
TIMES_CALL, TIMES_PARAMETERS = 0x00, 0x08  # a function and the address of its structure
VALUES_CALL, VALUES_PARAMETERS = 0x10, 0x18
TIMES_INDEX = 0x20  # address of the sample's number in the first structure
TIMES = 0x28  # address of start and end, two numbers
VALUES_INDEX = 0x30
VALUES, VALUE_COUNT = 0x38, 0x40  # address of the values and how many there are
NEXT, END = 0x48, 0x50  # the sample that is read next, and the one behind the last
ROWS = 0x58  # address of the next row: start, end, values
CONTROL_BYTES = 0x60

X86_64 = Code(
    bytes.fromhex(
        "f30f1efa53554883ec084889fb488b6b4831c0483b6b507347488b4320488928488b4330488928488b7b08ff1385c075"
        "2f488b7b18ff531085c07524488b7b58488b732848a548a5488b7338488b4b40f348a548897b5848ffc548896b48ebad"
        "4883c4085d5bc3"
    ),
    entries={"read": 0},
    assembly="""
    .intel_syntax noprefix
read:                                   # (control *) -> 0, or the answer of the call that refused
    endbr64
    push    rbx
    push    rbp
    sub     rsp, 8
    mov     rbx, rdi
1:  mov     rbp, [rbx + 0x48]
    xor     eax, eax
    cmp     rbp, [rbx + 0x50]
    jae     2f
    mov     rax, [rbx + 0x20]
    mov     [rax], rbp
    mov     rax, [rbx + 0x30]
    mov     [rax], rbp
    mov     rdi, [rbx + 0x08]
    call    [rbx]
    test    eax, eax
    jnz     2f
    mov     rdi, [rbx + 0x18]
    call    [rbx + 0x10]
    test    eax, eax
    jnz     2f
    mov     rdi, [rbx + 0x58]
    mov     rsi, [rbx + 0x28]
    movsq
    movsq
    mov     rsi, [rbx + 0x38]
    mov     rcx, [rbx + 0x40]
    rep movsq
    mov     [rbx + 0x58], rdi
    inc     rbp
    mov     [rbx + 0x48], rbp
    jmp     1b
2:  add     rsp, 8
    pop     rbp
    pop     rbx
    ret
""",
)

AARCH64 = Code(
    bytes.fromhex(
        "5f2403d5fd7bbea9fd030091f35301a9f30300aa74a644a9000080529f0209eb22030054691240f9340100f9691a40f9"
        "340100f9690240a920013fd640020035690241a920013fd6e0010035692e40f96a1640f94b3140a92b3181a86aae43a9"
        "ab0000b44c8540f82c8500f86b0500d1fcffff17692e00f994060091742600f9e5ffff17f35341a9fd7bc2a8c0035fd6"
    ),
    entries={"read": 0},
    assembly="""
read:                                   // (control *) -> 0, or the answer of the call that refused
    hint    #34                         // bti c
    stp     x29, x30, [sp, #-32]!
    mov     x29, sp
    stp     x19, x20, [sp, #16]
    mov     x19, x0
1:  ldp     x20, x9, [x19, #0x48]
    mov     w0, #0
    cmp     x20, x9
    b.hs    3f
    ldr     x9, [x19, #0x20]
    str     x20, [x9]
    ldr     x9, [x19, #0x30]
    str     x20, [x9]
    ldp     x9, x0, [x19]
    blr     x9
    cbnz    w0, 3f
    ldp     x9, x0, [x19, #0x10]
    blr     x9
    cbnz    w0, 3f
    ldr     x9, [x19, #0x58]
    ldr     x10, [x19, #0x28]
    ldp     x11, x12, [x10]
    stp     x11, x12, [x9], #16
    ldp     x10, x11, [x19, #0x38]
2:  cbz     x11, 4f
    ldr     x12, [x10], #8
    str     x12, [x9], #8
    sub     x11, x11, #1
    b       2b
4:  str     x9, [x19, #0x58]
    add     x20, x20, #1
    str     x20, [x19, #0x48]
    b       1b
3:  ldp     x19, x20, [sp, #16]
    ldp     x29, x30, [sp], #32
    ret
""",
)

CODES = {"x86_64": X86_64, "aarch64": AARCH64}

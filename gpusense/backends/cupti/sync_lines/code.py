"""The callback that notes from which Python lines synchronising calls are made, as machine code. Data only.

CUPTI calls it on the thread of the program that makes the call. It takes the GIL by CPython's own interface, walks
that thread's frames, writes the code object and the line of each into a ring, and gives the GIL back. No bytecode runs:
a callback in Python would run the program's signal handlers in the middle of the call and lose what they raise. A
thread that has no Python state, or that of another interpreter, is counted and left alone, so it never waits for the
GIL; with ``ARMED`` 0 nothing at all is done. The garbage collector is off meanwhile, because finalisers may call CUDA.

``INSIDE`` counts the threads that are between the check of ``ARMED`` and their return. The ring is written and read
with the GIL held, so it needs no lock. ``tests/backends/cupti/sync_lines/test_code.py`` assembles, compares and runs
the sources.
"""

from ...._capi.machine.executable import Code

# The control block: eight-byte numbers at these offsets.
ARMED = 0x00
INSIDE = 0x08
LAST = 0x10  # the last call, as 2**32 + its correlation id: the driver's part of a runtime call has the same
FOREIGN = 0x18  # calls of threads without Python, or of another interpreter's
LOST = 0x20  # calls for which the ring had no room
NOTED = 0x28
HEAD = 0x30  # numbers written so far
TAIL = 0x38  # numbers read so far
ROOM = 0x40  # numbers in the ring, a power of two
RING = 0x48  # its address
INTERPRETER = 0x50  # the one whose threads are noted
FUNCTIONS = 0x58  # addresses, in the order of the tuple below

#: Of CPython, all of them exported by every release from 3.10 on.
PYTHON_FUNCTIONS = (
    "PyGILState_GetThisThreadState",
    "PyThreadState_GetInterpreter",
    "PyGILState_Ensure",
    "PyGILState_Release",
    "PyGC_Disable",
    "PyGC_Enable",
    "PyEval_GetFrame",
    "PyFrame_GetBack",
    "PyFrame_GetCode",
    "PyFrame_GetLineNumber",
    "Py_IncRef",
    "Py_DecRef",
)
STOPS = FUNCTIONS + 8 * len(PYTHON_FUNCTIONS)  # code objects at which the walk ends, by a part of their address
STOP_SHIFT, STOP_COUNT = 5, 256
CONTROL_BYTES = STOPS + 8 * STOP_COUNT

#: Frames of one call, innermost first; what lies further out is not looked at.
DEPTH = 40
#: A row: (frames << 32 | correlation id), then for each frame its code object (the reader owns a reference) and line.
ROW_NUMBERS = 1 + 2 * DEPTH

# Of CUpti_CallbackData, which CUPTI hands over.
CALL_SITE, ENTER = 0, 0  # CUpti_ApiCallbackSite
CALL_CORRELATION = 64


CONSTANTS = """
    .set ARMED, 0x00
    .set INSIDE, 0x08
    .set LAST, 0x10
    .set FOREIGN, 0x18
    .set LOST, 0x20
    .set NOTED, 0x28
    .set HEAD, 0x30
    .set TAIL, 0x38
    .set ROOM, 0x40
    .set RING, 0x48
    .set INTERPRETER, 0x50
    .set THREAD_STATE, 0x58
    .set INTERPRETER_OF, 0x60
    .set TAKE_GIL, 0x68
    .set GIVE_GIL, 0x70
    .set COLLECT_NOT, 0x78
    .set COLLECT, 0x80
    .set FRAME, 0x88
    .set BACK, 0x90
    .set CODE, 0x98
    .set LINE, 0xa0
    .set INCREASE, 0xa8
    .set DECREASE, 0xb0
    .set STOPS, 0xb8
    .set STOP_SHIFT, 5
    .set STOP_MASK, 255
    .set DEPTH, 40
    .set ROW_NUMBERS, 81
    .set CALL_SITE, 0
    .set CALL_CORRELATION, 64
"""

X86_64 = Code(
    bytes.fromhex(
        "f30f1efa8339000f858f01000048833f000f8485010000535541544155415641574883ec184889fb448b6140b8010000"
        "0048c1e0204c09e0483943100f844c01000048894310ff53584885c00f84370100004889c7ff5360483b43500f852701"
        "0000f048ff430848833b000f8411010000ff53688904244c8b7b304c89f8482b43384883c051483b43400f87e8000000"
        "ff5378894424084d8d6f0141be28000000ff93880000004889c54885ed0f848c0000004889efff93a80000004889efff"
        "93980000004889c148c1e90581e1ff000000483984cbb8000000750641be01000000488b4b4048ffc94c21e9488b5348"
        "488904ca49ffc54889efff93a00000004898488b4b4048ffc94c21e9488b5348488904ca49ffc54889efff9390000000"
        "4889ef4889c5ff93b00000004885ed740e41ffce75864889efff93b00000004c89e84c29f848d1e848c1e0204c09e048"
        "8b4b4048ffc94c21f9488b5348488904ca4c896b3048ff4328837c240800740cff9380000000eb0448ff43208b3c24ff"
        "5370f048ff4b08eb05f048ff43184883c418415f415e415d415c5d5bc3"
    ),
    entries={"note": 0},
    assembly=CONSTANTS
    + """
    .intel_syntax noprefix
note:                                   # (rdi: control, esi: domain, edx: function, rcx: CUpti_CallbackData)
    endbr64
    cmp     dword ptr [rcx + CALL_SITE], 0
    jne     9f                          # the call returns
    cmp     qword ptr [rdi + ARMED], 0
    je      9f
    push    rbx
    push    rbp
    push    r12
    push    r13
    push    r14
    push    r15
    sub     rsp, 24                     # [rsp]: state of the GIL, [rsp + 8]: whether the collector was on
    mov     rbx, rdi
    mov     r12d, [rcx + CALL_CORRELATION]
    mov     eax, 1
    shl     rax, 32
    or      rax, r12
    cmp     [rbx + LAST], rax
    je      8f
    mov     [rbx + LAST], rax
    call    [rbx + THREAD_STATE]
    test    rax, rax
    jz      7f
    mov     rdi, rax
    call    [rbx + INTERPRETER_OF]
    cmp     rax, [rbx + INTERPRETER]
    jne     7f
    lock inc qword ptr [rbx + INSIDE]
    cmp     qword ptr [rbx + ARMED], 0
    je      6f
    call    [rbx + TAKE_GIL]
    mov     [rsp], eax
    mov     r15, [rbx + HEAD]           # where the row begins
    mov     rax, r15
    sub     rax, [rbx + TAIL]
    add     rax, ROW_NUMBERS
    cmp     rax, [rbx + ROOM]
    ja      5f
    call    [rbx + COLLECT_NOT]
    mov     [rsp + 8], eax
    lea     r13, [r15 + 1]              # the next number
    mov     r14d, DEPTH
    call    [rbx + FRAME]
    mov     rbp, rax
    test    rbp, rbp
    jz      3f
    mov     rdi, rbp
    call    [rbx + INCREASE]
2:  mov     rdi, rbp
    call    [rbx + CODE]
    mov     rcx, rax
    shr     rcx, STOP_SHIFT
    and     ecx, STOP_MASK
    cmp     [rbx + rcx * 8 + STOPS], rax
    jne     1f
    mov     r14d, 1                     # the last frame to look at
1:  mov     rcx, [rbx + ROOM]
    dec     rcx
    and     rcx, r13
    mov     rdx, [rbx + RING]
    mov     [rdx + rcx * 8], rax
    inc     r13
    mov     rdi, rbp
    call    [rbx + LINE]
    cdqe
    mov     rcx, [rbx + ROOM]
    dec     rcx
    and     rcx, r13
    mov     rdx, [rbx + RING]
    mov     [rdx + rcx * 8], rax
    inc     r13
    mov     rdi, rbp
    call    [rbx + BACK]
    mov     rdi, rbp
    mov     rbp, rax
    call    [rbx + DECREASE]
    test    rbp, rbp
    jz      3f
    dec     r14d
    jnz     2b
    mov     rdi, rbp
    call    [rbx + DECREASE]
3:  mov     rax, r13
    sub     rax, r15
    shr     rax, 1
    shl     rax, 32
    or      rax, r12
    mov     rcx, [rbx + ROOM]
    dec     rcx
    and     rcx, r15
    mov     rdx, [rbx + RING]
    mov     [rdx + rcx * 8], rax
    mov     [rbx + HEAD], r13
    inc     qword ptr [rbx + NOTED]
    cmp     dword ptr [rsp + 8], 0
    je      4f
    call    [rbx + COLLECT]
    jmp     4f
5:  inc     qword ptr [rbx + LOST]
4:  mov     edi, [rsp]
    call    [rbx + GIVE_GIL]
6:  lock dec qword ptr [rbx + INSIDE]
    jmp     8f
7:  lock inc qword ptr [rbx + FOREIGN]
8:  add     rsp, 24
    pop     r15
    pop     r14
    pop     r13
    pop     r12
    pop     rbp
    pop     rbx
9:  ret
""",
)

AARCH64 = Code(
    bytes.fromhex(
        "5f2403d5690040b9c90f0035090040f9890f00b4fd7bbba9fd030091f35301a9f55b02a9f76303a9f96b04a9f30300aa"
        "744040b9890260b26a0a40f93f010aeb600d0054690a00f9692e40f920013fd6400c00b4693240f920013fd6692a40f9"
        "1f0009eba10b0054692200912afd5fc84a0500912afd0bc8abffff35bf3b03d5690240f9e90900b4693640f920013fd6"
        "f903002a771a40f9691e40f9e90209cb294501916a2240f93f010aebe8070054693e40f920013fd6fa03002af6060091"
        "18058052694640f920013fd6f50300aaf50400b4695640f920013fd6e00315aa694e40f920013fd6093045d36ae20291"
        "4a7969f85f0100eb18179f1a6a2e44a94a0500d14a01168a60792af8d6060091e00315aa695240f920013fd6007c4093"
        "6a2e44a94a0500d14a01168a60792af8d6060091e00315aa694a40f920013fd6e90300aae00315aaf50309aa695a40f9"
        "20013fd6d50000b41807005118fcff35e00315aa695a40f920013fd6c90217cb29fd41d3898209aa6a2e44a94a0500d1"
        "4a01178a69792af8761a00f9691640f929050091691600f9fa000034694240f920013fd604000014691240f929050091"
        "691200f9e003192a693a40f920013fd6692200912afd5fc84a0500d12afd0bc8abffff3506000014696200912a7d5fc8"
        "4a0500912a7d0bc8abffff35f96b44a9f76343a9f55b42a9f35341a9fd7bc5a8c0035fd6"
    ),
    entries={"note": 0},
    assembly=CONSTANTS
    + """
    .arch armv8.5-a
note:                                   // (x0: control, w1: domain, w2: function, x3: CUpti_CallbackData)
    bti     c
    ldr     w9, [x3, CALL_SITE]
    cbnz    w9, 9f                      // the call returns
    ldr     x9, [x0, ARMED]
    cbz     x9, 9f
    stp     x29, x30, [sp, -80]!
    mov     x29, sp
    stp     x19, x20, [sp, 16]
    stp     x21, x22, [sp, 32]
    stp     x23, x24, [sp, 48]
    stp     x25, x26, [sp, 64]
    mov     x19, x0
    ldr     w20, [x3, CALL_CORRELATION]
    orr     x9, x20, 0x100000000
    ldr     x10, [x19, LAST]
    cmp     x9, x10
    b.eq    8f
    str     x9, [x19, LAST]
    ldr     x9, [x19, THREAD_STATE]
    blr     x9
    cbz     x0, 7f
    ldr     x9, [x19, INTERPRETER_OF]
    blr     x9
    ldr     x9, [x19, INTERPRETER]
    cmp     x0, x9
    b.ne    7f
    add     x9, x19, INSIDE
1:  ldaxr   x10, [x9]
    add     x10, x10, 1
    stlxr   w11, x10, [x9]
    cbnz    w11, 1b
    dmb     ish                         // announced before ARMED is looked at again
    ldr     x9, [x19, ARMED]
    cbz     x9, 6f
    ldr     x9, [x19, TAKE_GIL]
    blr     x9
    mov     w25, w0
    ldr     x23, [x19, HEAD]            // where the row begins
    ldr     x9, [x19, TAIL]
    sub     x9, x23, x9
    add     x9, x9, ROW_NUMBERS
    ldr     x10, [x19, ROOM]
    cmp     x9, x10
    b.hi    5f
    ldr     x9, [x19, COLLECT_NOT]
    blr     x9
    mov     w26, w0
    add     x22, x23, 1                 // the next number
    mov     w24, DEPTH
    ldr     x9, [x19, FRAME]
    blr     x9
    mov     x21, x0
    cbz     x21, 3f
    ldr     x9, [x19, INCREASE]
    blr     x9
2:  mov     x0, x21
    ldr     x9, [x19, CODE]
    blr     x9
    ubfx    x9, x0, STOP_SHIFT, 8
    add     x10, x19, STOPS
    ldr     x10, [x10, x9, lsl 3]
    cmp     x10, x0
    csinc   w24, w24, wzr, ne           // the last frame to look at
    ldp     x10, x11, [x19, ROOM]
    sub     x10, x10, 1
    and     x10, x10, x22
    str     x0, [x11, x10, lsl 3]
    add     x22, x22, 1
    mov     x0, x21
    ldr     x9, [x19, LINE]
    blr     x9
    sxtw    x0, w0
    ldp     x10, x11, [x19, ROOM]
    sub     x10, x10, 1
    and     x10, x10, x22
    str     x0, [x11, x10, lsl 3]
    add     x22, x22, 1
    mov     x0, x21
    ldr     x9, [x19, BACK]
    blr     x9
    mov     x9, x0
    mov     x0, x21
    mov     x21, x9
    ldr     x9, [x19, DECREASE]
    blr     x9
    cbz     x21, 3f
    sub     w24, w24, 1
    cbnz    w24, 2b
    mov     x0, x21
    ldr     x9, [x19, DECREASE]
    blr     x9
3:  sub     x9, x22, x23
    lsr     x9, x9, 1
    orr     x9, x20, x9, lsl 32
    ldp     x10, x11, [x19, ROOM]
    sub     x10, x10, 1
    and     x10, x10, x23
    str     x9, [x11, x10, lsl 3]
    str     x22, [x19, HEAD]
    ldr     x9, [x19, NOTED]
    add     x9, x9, 1
    str     x9, [x19, NOTED]
    cbz     w26, 4f
    ldr     x9, [x19, COLLECT]
    blr     x9
    b       4f
5:  ldr     x9, [x19, LOST]
    add     x9, x9, 1
    str     x9, [x19, LOST]
4:  mov     w0, w25
    ldr     x9, [x19, GIVE_GIL]
    blr     x9
6:  add     x9, x19, INSIDE
1:  ldaxr   x10, [x9]
    sub     x10, x10, 1
    stlxr   w11, x10, [x9]
    cbnz    w11, 1b
    b       8f
7:  add     x9, x19, FOREIGN
1:  ldxr    x10, [x9]
    add     x10, x10, 1
    stxr    w11, x10, [x9]
    cbnz    w11, 1b
8:  ldp     x25, x26, [sp, 64]
    ldp     x23, x24, [sp, 48]
    ldp     x21, x22, [sp, 32]
    ldp     x19, x20, [sp, 16]
    ldp     x29, x30, [sp], 80
9:  ret
""",
)

CODES = {"x86_64": X86_64, "aarch64": AARCH64}

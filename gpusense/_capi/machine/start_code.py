"""What CUDA calls when a process begins to use it, as machine code with its assembly. Data only.

``cuInit`` loads the shared object that ``CUDA_INJECTION64_PATH`` names and calls its ``InitializeInjection``, before it
returns and so before any launch. The code has Python run a script. Where the calling thread has the GIL it runs there;
elsewhere on a thread of its own, for which the caller waits three seconds at most: another thread may hold the GIL and
wait for this very ``cuInit``. In a process without Python it leaves a note: a file with the process's number and name.
``tests/capi/test_shared_object.py`` assembles the sources and compares.
"""

from .executable import Code

#: Where things lie, from the beginning of the code: the script, and the data with an address for each of SYMBOLS.
SCRIPT, DATA = 0x1000, 0xF000
NOTE = 0x400  # from DATA: path of the note, for mkstemp
#: What the code calls or reads, in the order of their addresses in the data. Each may be missing.
SYMBOLS = (
    "PyGILState_Check",
    "PyGILState_Ensure",
    "PyGILState_Release",
    "PyRun_SimpleString",
    "Py_IsInitialized",
    "PyThread_start_new_thread",
    "usleep",
    "mkstemp",
    "getpid",
    "dprintf",
    "program_invocation_name",
    "close",
)

X86_64 = Code(
    bytes.fromhex(
        "f30f1efa53554883ec08488d1defef0000488b43204885c07447ffd085c07441ff1385c0740931ffe876000000eb68c7"
        "436000000000488d3d6600000031f6ff53284883f8ff744fbdb80b0000837b60007544bfe8030000ff5330ffcd75eeeb"
        "3648837b5000742f488dbb00040000ff533885c0782189c5ff534089c289ef488d3550000000488b4b50488b0931c0ff"
        "534889efff5358b8010000004883c4085d5bc3f30f1efa53554883ec08488d1d4cef0000ff530889c5488d3d400f0000"
        "ff531889efff5310c74360010000004883c4085d5bc325642025730a00"
    ),
    entries={"begin": 0},
    assembly="""
    .intel_syntax noprefix
    .set DATA, 0xf000                   # from the beginning of the code
    .set SCRIPT, 0x1000
begin:                                  # () -> 1
    endbr64
    push    rbx
    push    rbp
    sub     rsp, 8
    lea     rbx, [rip + begin + DATA]
    mov     rax, [rbx + 0x20]           # Py_IsInitialized
    test    rax, rax
    jz      3f
    call    rax
    test    eax, eax
    jz      3f
    call    [rbx]                       # PyGILState_Check
    test    eax, eax
    jz      1f
    xor     edi, edi
    call    run
    jmp     4f
1:  mov     dword ptr [rbx + 0x60], 0
    lea     rdi, [rip + run]
    xor     esi, esi
    call    [rbx + 0x28]                # PyThread_start_new_thread
    cmp     rax, -1
    je      4f
    mov     ebp, 3000
2:  cmp     dword ptr [rbx + 0x60], 0
    jne     4f
    mov     edi, 1000
    call    [rbx + 0x30]                # usleep
    dec     ebp
    jnz     2b
    jmp     4f
3:  cmp     qword ptr [rbx + 0x50], 0   # program_invocation_name, which not every C library has
    je      4f
    lea     rdi, [rbx + 0x400]
    call    [rbx + 0x38]                # mkstemp
    test    eax, eax
    js      4f
    mov     ebp, eax
    call    [rbx + 0x40]                # getpid
    mov     edx, eax
    mov     edi, ebp
    lea     rsi, [rip + 5f]
    mov     rcx, [rbx + 0x50]
    mov     rcx, [rcx]
    xor     eax, eax
    call    [rbx + 0x48]                # dprintf
    mov     edi, ebp
    call    [rbx + 0x58]                # close
4:  mov     eax, 1
    add     rsp, 8
    pop     rbp
    pop     rbx
    ret
run:                                    # (unused)
    endbr64
    push    rbx
    push    rbp
    sub     rsp, 8
    lea     rbx, [rip + begin + DATA]
    call    [rbx + 8]                   # PyGILState_Ensure
    mov     ebp, eax
    lea     rdi, [rip + begin + SCRIPT]
    call    [rbx + 0x18]                # PyRun_SimpleString
    mov     edi, ebp
    call    [rbx + 0x10]                # PyGILState_Release
    mov     dword ptr [rbx + 0x60], 1
    add     rsp, 8
    pop     rbp
    pop     rbx
    ret
5:  .asciz  "%d %s\\n"
""",
)

AARCH64 = Code(
    bytes.fromhex(
        "5f2403d5fd7bbea9fd030091f35301a9937f0710691240f9090300b420013fd6c0020034690240f920013fd660000034"
        "29000094240000147f6200b9c0040010010080d2691640f920013fd61f0400b1a003005414778152696240b949030035"
        "007d8052691a40f920013fd69406007141ffff5414000014692a40f9490200b460021091691e40f920013fd6c001f837"
        "f403002a692240f920013fd6e203002ae003142ae1030010632a40f9630040f9692640f920013fd6e003142a692e40f9"
        "20013fd620008052f35341a9fd7bc2a8c0035fd65f2403d5fd7bbea9fd030091f35301a9f3780710690640f920013fd6"
        "f403002a60780010690e40f920013fd6e003142a690a40f920013fd629008052696200b9f35341a9fd7bc2a8c0035fd6"
        "25642025730a00"
    ),
    entries={"begin": 0},
    assembly="""
    .set DATA, 0xf000                   // from the beginning of the code
    .set SCRIPT, 0x1000
begin:                                  // () -> 1
    hint    #34                         // bti c
    stp     x29, x30, [sp, #-32]!
    mov     x29, sp
    stp     x19, x20, [sp, #16]
    adr     x19, begin + DATA
    ldr     x9, [x19, #0x20]            // Py_IsInitialized
    cbz     x9, 3f
    blr     x9
    cbz     w0, 3f
    ldr     x9, [x19]                   // PyGILState_Check
    blr     x9
    cbz     w0, 1f
    bl      run
    b       4f
1:  str     wzr, [x19, #0x60]
    adr     x0, run
    mov     x1, #0
    ldr     x9, [x19, #0x28]            // PyThread_start_new_thread
    blr     x9
    cmn     x0, #1
    b.eq    4f
    mov     w20, #3000
2:  ldr     w9, [x19, #0x60]
    cbnz    w9, 4f
    mov     w0, #1000
    ldr     x9, [x19, #0x30]            // usleep
    blr     x9
    subs    w20, w20, #1
    b.ne    2b
    b       4f
3:  ldr     x9, [x19, #0x50]            // program_invocation_name, which not every C library has
    cbz     x9, 4f
    add     x0, x19, #0x400
    ldr     x9, [x19, #0x38]            // mkstemp
    blr     x9
    tbnz    w0, #31, 4f
    mov     w20, w0
    ldr     x9, [x19, #0x40]            // getpid
    blr     x9
    mov     w2, w0
    mov     w0, w20
    adr     x1, 5f
    ldr     x3, [x19, #0x50]
    ldr     x3, [x3]
    ldr     x9, [x19, #0x48]            // dprintf
    blr     x9
    mov     w0, w20
    ldr     x9, [x19, #0x58]            // close
    blr     x9
4:  mov     w0, #1
    ldp     x19, x20, [sp, #16]
    ldp     x29, x30, [sp], #32
    ret
run:                                    // (unused)
    hint    #34                         // bti c
    stp     x29, x30, [sp, #-32]!
    mov     x29, sp
    stp     x19, x20, [sp, #16]
    adr     x19, begin + DATA
    ldr     x9, [x19, #8]               // PyGILState_Ensure
    blr     x9
    mov     w20, w0
    adr     x0, begin + SCRIPT
    ldr     x9, [x19, #0x18]            // PyRun_SimpleString
    blr     x9
    mov     w0, w20
    ldr     x9, [x19, #0x10]            // PyGILState_Release
    blr     x9
    mov     w9, #1
    str     w9, [x19, #0x60]
    ldp     x19, x20, [sp, #16]
    ldp     x29, x30, [sp], #32
    ret
5:  .asciz  "%d %s\\n"
""",
)

CODES = {"x86_64": X86_64, "aarch64": AARCH64}

"""The mailbox's machine code for x86-64; see ``mailbox_code.py``. Data only."""

from .executable import Code
from .mailbox_layout import CONSTANTS

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
        "4989c349d3e34d03592048c7c7ffffffff488d4a084c39d17765418b0c1381e1ffffff7f745983f940734c498b8cc900"
        "81000089ce85f6743e488d04324c39d0773d48c1e920742a4801d1418b0c0b85c97512488d48084c39d1772341833c03"
        "00741ceb0d4885ff780689ce29fe780289cf4889c2eb9a49c74170010000004885ff7819498b41684885c0780889f929"
        "c1780a7408f0490fb1796875ebc3"
    ),
    entries={"requested": 0x008, "completed": 0x0B3, "take": 0x133, "give": 0x19F, "thread": 0x205, "newest": 0x213},
    assembly=CONSTANTS
    + """
    .intel_syntax noprefix
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
    jnz     9f
    lea     rcx, [rax + 8]              # it is just being written, or has none: then there is a record behind it
    cmp     rcx, r10
    ja      5f
    cmp     dword ptr [r11 + rax], 0
    je      5f
    jmp     3f
9:  test    rdi, rdi
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

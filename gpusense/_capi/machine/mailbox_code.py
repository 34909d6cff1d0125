"""The mailbox between CUPTI's threads and ours as machine code, with the assembly that it comes from. Data only.

``tests/backends/cupti/test_mailbox.py`` assembles the sources and compares. Up to six functions, position independent,
that touch nothing but their arguments and one control block whose address stands in the eight bytes before them. No
lock, no call, no allocation; every access to the control block and to the arena is bounded by numbers in the control
block, so that a forked child, in which it is all zeros, finds no buffer to hand out, takes none in and cannot fault.

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

from .executable import Code
from .mailbox_aarch64 import AARCH64
from .mailbox_x86_64 import X86_64

#: By ``os.uname().machine``.
CODES: dict[str, Code] = {"x86_64": X86_64, "aarch64": AARCH64}

"""What a descriptor stands for: a program may close ours, and a file of its own may have its number then."""

import os


def file_of(descriptor: int) -> tuple[int, int] | None:
    """Device and number of the file; None where the descriptor is none."""
    try:
        found = os.fstat(descriptor)
    except (OSError, OverflowError):
        return None
    return found.st_dev, found.st_ino

"""Counts beside what they count."""


def count_text(count: int, one: str, many: "str | None" = None) -> str:
    """``(8412, "kernel")`` → "8,412 kernels"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"

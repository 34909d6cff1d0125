"""Names of kernels out of public profiles, with what they should be called and what they do (tests/decode/data)."""

import csv
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).parent.parent / "decode" / "data" / "kernel_names.tsv"


class Row(NamedTuple):
    name: str
    label: str
    family: str
    precision: str | None
    tensor_cores: bool | None


def _rows() -> list[Row]:
    with DATA.open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file, dialect="excel-tab", quoting=csv.QUOTE_NONE))[1:]
    return [Row(*line[:3], line[3] or None, {"yes": True, "no": False}.get(line[4])) for line in lines]


NAMES = _rows()

"""Fetches wgpu wheels, each with its wgpu-native and header, into the folder named by GPUSENSE_WGPU_WHEELS.

``python tests/support/wgpu_wheels.py`` gets the few that CI runs, ``… all`` one of every bundled wgpu-native. A version
lies unpacked in a folder of its name, so that ``PYTHONPATH`` can point at it. Older wgpu-py needs sniffio besides.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

VARIABLE = "GPUSENSE_WGPU_WHEELS"
#: One of each structure family and of each older ABI that differs inside a family.
CI = ("0.16.0", "0.20.1", "0.25.0", "0.32.0")
ALL = (
    "0.15.3",
    "0.16.0",
    "0.17.3",
    "0.18.1",
    "0.19.3",
    "0.20.1",
    "0.21.1",
    "0.22.2",
    "0.23.0",
    "0.24.0",
    "0.25.0",
    "0.26.0",
    "0.27.0",
    "0.28.1",
    "0.29.0",
    "0.30.0",
    "0.31.1",
    "0.32.0",
)


def folder() -> pathlib.Path | None:
    value = os.environ.get(VARIABLE)
    return pathlib.Path(value) if value else None


def present() -> list[pathlib.Path]:
    """The unpacked versions, oldest first."""
    root = folder()
    if root is None or not root.is_dir():
        return []
    found = [path for path in root.iterdir() if (path / "wgpu" / "resources").is_dir()]
    return sorted(found, key=lambda path: [int(part) for part in path.name.split(".")])


def library(version: pathlib.Path) -> pathlib.Path:
    return next(path for path in (version / "wgpu" / "resources").iterdir() if path.suffix in (".so", ".dylib", ".dll"))


def fetch(version: str, root: pathlib.Path) -> None:
    target = root / version
    if target.is_dir():
        return
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--ignore-requires-python"]
        subprocess.run([*command, "--only-binary", ":all:", "-d", work, f"wgpu=={version}"], check=True)
        wheel = next(pathlib.Path(work).glob("*.whl"))
        zipfile.ZipFile(wheel).extractall(target)


def main() -> None:
    root = folder()
    if root is None:
        raise SystemExit(f"set {VARIABLE}")
    for version in ALL if sys.argv[1:] == ["all"] else CI:
        fetch(version, root)
        print(version)


if __name__ == "__main__":
    main()

"""Downloads a few releases of libcupti from PyPI, as an oracle for decoder and counters: fetch_cupti.py FOLDER

Of each wheel only the library and its headers are unpacked, into FOLDER/RELEASE, and of one the library that evaluates
metrics. What is there already is left alone. Nothing of it is committed or shipped.
"""

import pathlib
import subprocess
import sys
import tempfile
import zipfile

RELEASES = {
    "11.7": "nvidia-cuda-cupti-cu11==11.7.101",
    "11.8": "nvidia-cuda-cupti-cu11==11.8.87",
    "12.4": "nvidia-cuda-cupti-cu12==12.4.127",
    "12.9": "nvidia-cuda-cupti-cu12==12.9.79",
    "13.0": "nvidia-cuda-cupti==13.0.85",
    "13.1": "nvidia-cuda-cupti==13.1.115",
}
#: Their headers are of use, their library does not work without a driver.
LATER = {"13.4": "nvidia-cuda-cupti==13.4.92"}
EVALUATES, EVALUATOR = "13.0", "libnvperf_host.so"  # 32 MB
PLATFORMS = ("manylinux1", "manylinux2014", "manylinux_2_17", "manylinux_2_25", "manylinux_2_27")


def fetch(folder: pathlib.Path, machine: str = "x86_64") -> None:
    for release, requirement in (RELEASES | LATER).items():
        lacks_evaluator = release == EVALUATES and not (folder / release / EVALUATOR).exists()
        if library(folder / release) is None or lacks_evaluator:
            with tempfile.TemporaryDirectory() as place:
                platforms = [f"--platform={name}_{machine}" for name in PLATFORMS]
                command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
                subprocess.run([*command, *platforms, "-d", place, requirement], check=True, timeout=300)
                for wheel in pathlib.Path(place).glob("*.whl"):
                    unpack(wheel, folder / release, [EVALUATOR] if release == EVALUATES else [])


def unpack(wheel: pathlib.Path, folder: pathlib.Path, beside: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            name = pathlib.PurePosixPath(member)
            if name.name.startswith("libcupti.so") or name.name in beside:
                (folder / name.name).write_bytes(archive.read(member))
            elif "include" in name.parts and name.suffix == ".h":
                inside = name.parts[len(name.parts) - 1 - name.parts[::-1].index("include") + 1 :]
                target = folder.joinpath("include", *inside)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(member))


def library(folder: pathlib.Path) -> pathlib.Path | None:
    """The libcupti unpacked into ``folder``."""
    return next(iter(sorted(folder.glob("libcupti.so*"))), None)


if __name__ == "__main__":
    fetch(pathlib.Path(sys.argv[1]))

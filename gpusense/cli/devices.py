"""List the devices, one a physical GPU, whatever its vendor."""

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object, schema gpusense.devices/1")


def main(arguments: argparse.Namespace) -> int:
    """0 with a device, 1 without; a processor that plays one is none. What is not known, and why, stands on stderr."""
    from .. import doctor
    from .._records.json_codec import dumps, encode
    from .._runtime.text import terminal
    from ..report.style import style_of

    (found, silent), line = doctor.devices(), style_of(sys.stdout).whole
    if arguments.json:
        rows = {"schema": "gpusense.devices/1", "devices": [encode(device, full=True) for device in found]}
        sys.stdout.write(dumps(rows, portable=True) + "\n")
    for device in () if arguments.json else found:
        sys.stdout.write(line(describe(device)) + "\n")
    if silent:
        left_out = f"Devices of {', '.join(silent)} are not known: the driver does not answer"
        sys.stderr.write(f"{terminal(left_out)}; gpusense doctor says what to do.\n")
    elif all(device.kind == "cpu" for device in found):
        other = ", but for a processor that plays one" if found else ""
        sys.stderr.write(f"No device was found{other}; gpusense doctor says why.\n")
    return 0 if any(device.kind != "cpu" for device in found) else 1


def describe(device: "DeviceInfo") -> str:  # type: ignore[name-defined]  # noqa: F821 - loaded when there is one
    """One device in a line."""
    from .._runtime.text import one_line, size_text

    facts = [
        one_line(device.name),
        device.vendor,
        "a processor, no GPU" if device.kind == "cpu" else None,
        size_text(device.memory_total_bytes) if device.memory_total_bytes else None,
        f"compute capability {'.'.join(map(str, device.compute_capability))}" if device.compute_capability else None,
        f"{device.sm_count} SMs" if device.sm_count else None,
        device.pci_bus_id,
        device.uuid,
        f"driver {device.driver}" if device.driver else None,
        f"seen by {', '.join(device.sources)}" if device.sources else None,
    ]
    return f"{device.index}: " + ", ".join(fact for fact in facts if fact)

"""Say which sources were found, which were not and why, and what to do; ``--selftest`` proves capture on a GPU."""

import argparse
import sys
from typing import Any

from .._records.records import NO_GPU
from .._runtime.text import count_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object, schema gpusense.doctor/1")
    parser.add_argument(
        "--selftest", action="store_true", help="launch one kernel and one copy, and check that both are recorded"
    )
    parser.add_argument("--device", type=int, default=0, metavar="N", help="CUDA device of the self-test (0)")


def main(arguments: argparse.Namespace) -> int:
    """0; with ``--selftest`` 1 where it failed and 4 where there was nothing to test on."""
    from .. import doctor

    tested = doctor.selftest(arguments.device) if arguments.selftest else None
    wgpu = doctor.wgpu_selftest() if arguments.selftest else None
    if arguments.json:
        _json(tested, wgpu)
    else:
        _text(tested, wgpu)
    if tested is None or tested.passed:
        return 0
    return 4 if tested.passed is None else 1


def _json(tested: Any, wgpu: Any) -> None:
    from .. import __version__, doctor
    from .._records.json_codec import dumps, encode, plain

    checks = doctor.backends()
    report = {
        "schema": "gpusense.doctor/1",
        "version": __version__,
        "backends": [check._asdict() for check in checks],
        "levels": [check._asdict() for check in doctor.levels(checks)],
        "environment": [check._asdict() for check in doctor.environment()],
        "devices": [encode(device, full=True) for device in doctor.devices(checks)[0]],
        "selftest": tested._asdict() if tested is not None else None,
        "wgpu_selftest": wgpu,
    }
    sys.stdout.write(dumps(plain(report), portable=True) + "\n")


def _text(tested: Any, wgpu: Any) -> None:
    from .. import __version__, doctor
    from ..report.style import style_of
    from .devices import describe

    style = style_of(sys.stdout)

    def say(text: str, paint: str = "") -> None:
        sys.stdout.writelines(f"{line}\n" for line in style.wrapped(text, paint=paint))

    say(f"gpusense {__version__}", "bold")
    checks = doctor.report()
    say(_answer({check.name: check for check in checks}), "bold")
    told = set()
    for check in checks:
        mark, paint = ("ok", "green") if check.available else ("--", "yellow")
        facts = [fact for fact in (check.version, check.library) if fact]
        say(f"{mark} {check.name:<12} {' · '.join(facts)}".rstrip(), paint)
        if check.reason:
            say(f"   {check.reason}")
        if check.hint and check.hint not in told:
            told.add(check.hint)
            say(f"   try: {check.hint}")
    found, silent = doctor.devices(checks)
    left_out = f", without those of {', '.join(silent)}" if silent else ""
    say(f"{count_text(len(found), 'device')}{left_out}", "bold")
    for device in found:
        say(describe(device))
    if tested is not None:
        word = {True: "passed", False: "FAILED", None: "not possible"}[tested.passed]
        say(f"self-test {word}: {tested.reason}", "green" if tested.passed else "red")
    if wgpu is not None:
        say(f"wgpu: {wgpu}")


def _answer(checks: dict[str, Any]) -> str:
    """What this machine can do, in a sentence or two."""
    if checks["cupti"].available:
        return "GPU kernels can be recorded here; gpusense doctor --selftest tries it."
    why = "the line of cupti says why" if checks["cuda"].available else NO_GPU
    return f"GPU kernels cannot be recorded here: {why}. Blocks, manual records and reports work."

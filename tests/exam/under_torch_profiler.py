"""Runs a script under torch.profiler and prints what that says: ``under_torch_profiler.py TEXT SCRIPT [arguments]``.

The tables go to the file TEXT; below them stand the recommendations of torch-tb-profiler, where it can be imported.
"""

import os
import re
import runpy
import sys
import tempfile

import torch
from torch.profiler import ProfilerActivity, profile

ROWS = 25


def main() -> None:
    text, script = sys.argv[1], sys.argv[2]
    sys.argv = sys.argv[2:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        runpy.run_path(script, run_name="__main__")
    rows = recorded.key_averages()
    parts = [
        f"torch {torch.__version__}, torch.profiler over the whole run",
        rows.table(sort_by="self_cuda_time_total", row_limit=ROWS, max_name_column_width=60),
        rows.table(sort_by="self_cpu_time_total", row_limit=ROWS, max_name_column_width=60),
        "Recommendations of torch-tb-profiler",
        *recommendations(recorded),
    ]
    with open(text, "w", encoding="utf-8") as file:
        file.write("\n\n".join(parts) + "\n")


def recommendations(recorded: profile) -> list[str]:
    """Its sentences without their links, or why there are none."""
    try:
        from torch_tb_profiler.profiler.data import RunProfileData
    except ImportError as error:
        return [f"none: {error}"]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "worker0.pt.trace.json")
        recorded.export_chrome_trace(path)
        try:
            data = RunProfileData.parse("worker0", 1, path, folder)
            data.process()
            data.analyze()
        except Exception as error:
            return [f"none: it failed with {error!r}"]
    return [re.sub(r"<[^>]+>", "", sentence) for sentence in data.recommendations] or ["none: it has nothing to say"]


if __name__ == "__main__":
    main()

"""Which of these files pytest leaves alone: a script whose host the tests' environment need not have."""

collect_ignore = ["bench_wgpu.py"]

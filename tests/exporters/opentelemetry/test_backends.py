"""The configurations of the pages about backends: well-formed, and Prometheus's run as it stands there."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import pytest
from servers import free_port
from support.machine import ROOT, require

HOWTO = ROOT / "docs" / "howto"
PAGES = sorted(path.name for path in HOWTO.glob("otel-*.md"))
FENCE = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.network


def fences(page, language):
    return [
        found["text"] for found in FENCE.finditer((HOWTO / page).read_text("utf-8")) if found["language"] == language
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if fences(page, "yaml")])
def test_files_are_well_formed(page):
    require(importlib.util.find_spec("yaml"), "pyyaml")
    import yaml

    for text in fences(page, "yaml"):
        found = yaml.safe_load(text)
        assert isinstance(found, dict)
        if "service" not in found:
            continue
        # A Collector refuses to start for a part that is named and not defined, and ignores one that nobody names.
        for kind in ("receivers", "processors", "exporters"):
            named = {name for pipeline in found["service"]["pipelines"].values() for name in pipeline.get(kind, ())}
            assert named == set(found.get(kind, {}))


@pytest.fixture
def prometheus_page(tmp_path):
    """The page's application and ``prometheus.yml``, on free ports and in a hurry."""
    for program in ("prometheus", "promtool"):
        require(shutil.which(program), f"{program} (Debian's package prometheus)")
    require(importlib.util.find_spec("opentelemetry.exporter.prometheus"), "opentelemetry-exporter-prometheus")
    port = free_port()
    (code,) = fences("otel-prometheus.md", "python")
    (config,) = [text for text in fences("otel-prometheus.md", "yaml") if "scrape_configs" in text]
    assert code.count("9464") == config.count("9464") == config.count("15s") == 1
    app = tmp_path / "app.py"
    app.write_text(code.replace("9464", str(port)) + WORK)
    file = tmp_path / "prometheus.yml"
    direct = free_port()
    both = f'"localhost:{port}", "localhost:{direct}"'
    file.write_text(config.replace('"localhost:9464"', both).replace("15s", "200ms"))
    return app, file, f"http://127.0.0.1:{port}/metrics", direct


#: What the application does: a kernel and a copy every 0.1 s, for as long as anybody asks.
WORK = """
import time
import gpusense
for _ in range(600):
    gpusense.record_kernel("sgemm", duration_ns=200_000)
    gpusense.record_transfer("mesh", "cpu_to_gpu", bytes=1_000_000, duration_ns=200_000)
    time.sleep(0.1)
"""


def test_prometheus_scrapes_the_page_and_answers_its_queries(prometheus_page, build_library, tmp_path):
    app, config, metrics_url, direct = prometheus_page
    checked = subprocess.run(["promtool", "check", "config", config], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr

    address = f"127.0.0.1:{free_port()}"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSENSE", "OTEL", "FAKE"))}
    environ |= {
        "PYTHONPATH": str(ROOT),
        "GPUSENSE": "on",
        "GPUSENSE_LIBNVIDIA_ML": str(build_library("libnvidia_ml.c", "libnvidia-ml.so.1")),
    }
    log = tmp_path / "log"
    with log.open("wb") as output:
        programs = [
            subprocess.Popen([sys.executable, app], env=environ, stdout=output, stderr=output),
            subprocess.Popen(
                [sys.executable, "-m", "gpusense", "monitor", "--prometheus", f":{direct}"],
                env=environ, stdout=output, stderr=output, cwd=tmp_path,
            ),
            subprocess.Popen(
                ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
                 f"--web.listen-address={address}"],
                stdout=output, stderr=output,
            ),
        ]  # fmt: skip
    try:
        text, _ = fences("otel-prometheus.md", "promql")  # the second is of series that a Collector makes
        straight = f'hw_gpu_utilization_ratio{{hw_gpu_task="general",instance="localhost:{direct}"}}'
        queries = [*text.splitlines(), straight]
        answers = {}
        deadline = time.monotonic() + 60
        while len(answers) < len(queries):
            assert time.monotonic() < deadline, (sorted(set(queries) - set(answers)), log.read_text())
            assert all(program.poll() is None for program in programs), log.read_text()
            answers = {query: found for query in queries if (found := ask(address, query))}
            time.sleep(0.2)
        device = {"hw_id": "GPU-ab000000-1111-2222-3333-444444444444", "job": "gpusense"}
        general = answers['hw_gpu_utilization{hw_gpu_task="general"}'][0]
        assert device.items() <= general["metric"].items()
        assert float(general["value"][1]) == 0.87  # what the scripted driver says
        assert device.items() <= answers[straight][0]["metric"].items()  # and without OpenTelemetry the same
        assert float(answers[straight][0]["value"][1]) == 0.87
        assert 0 < float(answers["hw_gpu_memory_usage_bytes / hw_gpu_memory_limit_bytes"][0]["value"][1]) < 1
        lint = subprocess.run(
            ["promtool", "check", "metrics"], input=read(metrics_url), capture_output=True, timeout=60
        )
        assert (lint.returncode, lint.stdout, lint.stderr) == (0, b"", b"")
    finally:
        for program in programs:
            program.terminate()
        for program in programs:
            program.wait(20)


def read(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read()


def ask(address, query):
    """What Prometheus answers: a list of series, empty while it has none."""
    try:
        answer = json.loads(read(f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"))
    except OSError:  # it is starting
        return []
    assert answer["status"] == "success", answer
    return answer["data"]["result"]

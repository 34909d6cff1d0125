"""Device metrics as Prometheus text, through OpenTelemetry's own Prometheus exporter.

pip install 'gpusense[otel]' opentelemetry-exporter-prometheus
python examples/prometheus.py
"""

import sys
import time

try:
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from prometheus_client import generate_latest  # start_http_server(9464) in a program that stays
except ImportError as error:
    print(f"{error}; pip install 'gpusense[otel]' opentelemetry-exporter-prometheus")
    sys.exit(0)

from gpusense.exporters import opentelemetry

provider = MeterProvider([PrometheusMetricReader()])
opentelemetry.instrument(meter_provider=provider, spans=False, metrics=True)
time.sleep(0.5)
text = generate_latest().decode()
print("\n".join(line for line in text.splitlines() if line.startswith(("hw_", "gpu", "gpusense"))) or "no device here")
opentelemetry.uninstrument()
provider.shutdown()

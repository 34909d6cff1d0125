"""Device metrics for Prometheus, with only the standard library; it scrapes itself once and ends.

python examples/prometheus.py
"""

import time
import urllib.request

from gpusense import monitor
from gpusense.exporters import prometheus

# In a program that stays: port=9400
with monitor.start_background(interval=1.0) as running, prometheus.serve(running.latest, port=0) as server:
    while running.devices and not running.latest():
        time.sleep(0.01)
    print(urllib.request.urlopen(server.url).read().decode())
print("without a program of your own: gpusense monitor --prometheus :9400")

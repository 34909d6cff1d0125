import importlib.util

from support.machine import require


def test_the_packages_of_the_extra_are_here():
    require(importlib.util.find_spec("opentelemetry"), "opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http")

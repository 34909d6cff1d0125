"""Device metrics for Prometheus with the standard library alone: over HTTP, or as a file for node_exporter.

In: samples of a monitor, and sums of this process's collectives. Out: text. Names are those of OpenTelemetry's
conventions as its Collector writes them for Prometheus, or DCGM's fields; a value that a device does not report has no
line.
"""

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..._records.metrics import CollectiveTotals, GpuMetrics
from ...report.files import output
from ._names import NAMES, families
from ._text import OPENMETRICS, PLAIN, written

if TYPE_CHECKING:
    from ._server import Server

__all__ = ["NAMES", "serve", "text", "write_textfile"]


def text(
    samples: Iterable[GpuMetrics],
    names: str = "gpusense",
    *,
    collectives: Iterable[CollectiveTotals] = (),
    openmetrics: bool = False,
) -> str:
    """What Prometheus reads of ``samples`` and of ``collectives``, as :func:`gpusense.monitor.collectives` gives them.
    ``names``: "gpusense" or "dcgm", which has none for collectives. ``openmetrics``: OpenMetrics 1.0, else the text
    format 0.0.4. Raises ValueError for other names.
    """
    return written(families(samples, names, collectives), OPENMETRICS if openmetrics else PLAIN)


def write_textfile(path: "str | os.PathLike[str]", samples: Iterable[GpuMetrics], names: str = "gpusense") -> None:
    """Writes :func:`text` for node_exporter's textfile collector, which never sees half of it and reads ``*.prom``.
    Raises an OSError that says why where that cannot be.
    """
    with output(path) as file:
        file.write(text(samples, names))


def serve(
    latest: Callable[[], Iterable[GpuMetrics]], host: str = "127.0.0.1", port: int = 9400, names: str = "gpusense"
) -> "Server":
    """A server that answers ``/metrics`` on threads of its own until its ``stop()``. ``latest``: of a monitor, asked at
    every scrape; it must not wait for a device. What NCCL tells in this process is there, too. Raises OSError where
    nobody can listen there.
    """
    from ._server import Server

    return Server(latest, host, port, names)

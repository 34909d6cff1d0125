"""gpusense's own counters as metrics: what became of records, spans and attributes; imports no OpenTelemetry."""

from collections.abc import Iterable, Sequence
from typing import Any

Values = Iterable[tuple[float, dict[str, Any]]]


class OwnCounters:
    """Reads one pipeline; called by whatever thread reads metrics."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline

    def rows(self) -> Sequence[Any]:
        """``(name, unit, description, read)`` of each."""
        return (
            ("gpusense.records", "{record}", "Records seen, by what became of them", self._records),
            ("gpusense.records.dropped", "{record}", "Records that never reached gpusense", self._lost),
            ("gpusense.overhead.time", "s", "Time gpusense spent on the process's processors", self._overhead),
            ("gpusense.spans", "{record}", "Kept records, by how they were exported", self._spans),
            ("gpusense.spans.dropped", "{record}", "Kept records that got no span, and why", self._dropped),
            ("gpusense.attributes.dropped", "{attribute}", "Attributes that could not be sent", self._attributes),
        )

    def _records(self) -> Values:
        counters = self._pipeline.view.session().counters
        for outcome in ("kept", "aggregated", "invalid", "pre_session"):
            yield getattr(counters, outcome), {"gpusense.outcome": outcome}

    def _lost(self) -> Values:
        counters = self._pipeline.view.session().counters
        yield counters.dropped, {"gpusense.drop.reason": "driver"}
        yield counters.missed, {"gpusense.drop.reason": "no_buffer"}

    def _overhead(self) -> Values:
        for part, value in (self._pipeline.view.session().meta.get("overhead") or {}).items():
            name, _, unit = part.rpartition("_")
            if unit in ("ns", "s") and part != "threshold_ns" and isinstance(value, (int, float)):
                yield value / 1e9 if unit == "ns" else value, {"gpusense.overhead.part": name}

    def _spans(self) -> Values:
        yield self._pipeline.exported, {"gpusense.outcome": "exported"}
        yield self._pipeline.folded, {"gpusense.outcome": "folded"}

    def _dropped(self) -> Values:
        for reason, count in self._pipeline.dropped_now().items():
            yield count, {"gpusense.drop.reason": reason}

    def _attributes(self) -> Values:
        yield self._pipeline.lost_attributes, {}

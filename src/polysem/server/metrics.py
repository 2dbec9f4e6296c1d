"""Prometheus metrics of the server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from polysem.server.state import State

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics(Collector):
    """The counters of one application, in a registry of their own: a process may serve several.

    Labels hold a route's template, never a path: clients could make up any number of those.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.in_flight = 0
        self._state: State | None = None
        self.requests = self._counter("polysem_requests", "Requests answered.", "route", "method", "status")
        about = "Time from a request to the end of its answer."
        self.seconds = Histogram("polysem_request_seconds", about, ("route",), buckets=BUCKETS, registry=self.registry)
        self.refused = self._counter("polysem_refused", "Requests turned away, by the reason.", "why")
        self.cache_hits = self._counter("polysem_cache_hits", "Queries whose embedding was kept.")
        self.cache_misses = self._counter("polysem_cache_misses", "Queries that had to be encoded.")

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, labels, registry=self.registry)

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self.requests.labels(route, method, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def watch(self, state: State) -> None:
        """Show what the state of the server counts itself, read whenever the metrics are asked for."""
        self._state = state
        self.registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        if (state := self._state) is None:
            return
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        yield gauge("polysem_ready", "1 when the model is loaded.", float(state.phase == "ready"))
        yield gauge("polysem_requests_under_way", "Requests being answered.", self.in_flight)
        yield gauge("polysem_work_under_way", "Work that has a thread or waits for one.", state.workers.busy)
        yield gauge("polysem_uploads_kept", "Uploaded pictures that can be searched with.", len(state.uploads))
        yield gauge("polysem_resident_bytes", "Memory of the process.", _resident_bytes())
        yield counter("polysem_work_refused", "Work turned away because too much was waiting.", state.workers.refused)
        if state.loaded is not None:
            for name, batcher in (("texts", state.loaded.texts), ("images", state.loaded.images)):
                yield counter(f"polysem_encoded_{name}", f"Queries encoded, {name}.", batcher.items)
                yield counter(f"polysem_encoded_{name}_batches", f"Batches they came in, {name}.", batcher.batches)


def _resident_bytes() -> float:
    """Memory that the process holds; 0 where the system does not say."""
    if sys.platform == "win32":
        return 0.0
    import resource

    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return float(int(file.read().split()[1]) * resource.getpagesize())
    except (OSError, IndexError, ValueError):
        return 0.0

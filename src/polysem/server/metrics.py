"""What the server counts, in the text format that Prometheus reads."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Of one thread: the event loop's."""

    def __init__(self) -> None:
        self.requests: Counter[Labels] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._count: Counter[str] = Counter()
        self.under_way = 0
        self.refused: Counter[str] = Counter()

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """route: its template, never the path: clients could make up any number of those."""
        self.requests[(("route", route), ("method", method), ("status", str(status)))] += 1
        self._count[route] += 1
        self._seconds[route] += seconds  # type: ignore[assignment]
        for bound in BUCKETS:
            if seconds <= bound:
                self._buckets[(route, bound)] += 1

    def text(self, gauges: Mapping[str, tuple[str, float]], counters: Mapping[str, tuple[str, float]]) -> str:
        """gauges, counters: name to explanation and value, of what others count."""
        lines = [*_head("polysem_requests_total", "counter", "Requests answered.")]
        lines += [_line("polysem_requests_total", labels, count) for labels, count in sorted(self.requests.items())]
        lines += _head("polysem_request_seconds", "histogram", "Time from a request to the end of its answer.")
        for route in sorted(self._count):
            own: Labels = (("route", route),)
            for bound in BUCKETS:
                lines.append(
                    _line("polysem_request_seconds_bucket", (*own, ("le", str(bound))), self._buckets[(route, bound)])
                )
            lines.append(_line("polysem_request_seconds_bucket", (*own, ("le", "+Inf")), self._count[route]))
            lines.append(_line("polysem_request_seconds_sum", own, self._seconds[route]))
            lines.append(_line("polysem_request_seconds_count", own, self._count[route]))
        lines += _head("polysem_refused_total", "counter", "Requests turned away, by the reason.")
        lines += [_line("polysem_refused_total", (("why", why),), count) for why, count in sorted(self.refused.items())]
        for kind, values in (("gauge", gauges), ("counter", counters)):
            for name, (about, value) in values.items():
                lines += [*_head(name, kind, about), _line(name, (), value)]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, about: str) -> Iterable[str]:
    return (f"# HELP {name} {about}", f"# TYPE {name} {kind}")


def _line(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    # Every digit: of a counter rounded to six, Prometheus sees steps instead of a rate.
    written = int(value) if float(value).is_integer() else value
    return f"{name}{{{inside}}} {written}" if inside else f"{name} {written}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def resident_bytes() -> float:
    """Memory that the process holds; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    import resource

    return float(pages * resource.getpagesize()) if sys.platform != "win32" else 0.0

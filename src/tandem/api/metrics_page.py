"""The page of all metrics of a server: families of several sources as one text, under the prefix
that the operator chose, in the Prometheus text format or in OpenMetrics, as who scrapes accepts.

The page is written here and not by `prometheus_client`, whose writers look at each name and label
of each sample anew: that takes most of a scrape where there are thousands of series.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from prometheus_client import Metric, ProcessCollector
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST

from tandem.facts.metrics import Figures, MetricFamily

_TEXT, _OPENMETRICS = "text/plain", "application/openmetrics-text"
PAGE_TYPES = (_TEXT, _OPENMETRICS)
_TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ANYTHING = ("*/*", "text/*")
# Reads this process's figures when it is asked; registered nowhere.
_PROCESS = ProcessCollector(registry=None)
_BEYOND = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def metrics_page(
    own: Iterable[MetricFamily],
    *,
    prefix: str,
    accept: str = "",
    others: Iterable[Metric] = (),
) -> tuple[bytes, str]:
    """The page with its content type, for who sent that `Accept`. Where several of our `own`
    families have one name they are one with the samples of all. The `others`, and the figures of
    this process, have names that are the same everywhere, without the prefix."""
    is_openmetrics = prefers_openmetrics(accept)
    parts: dict[str, list[MetricFamily]] = {}
    for each in own:
        parts.setdefault(each.name, []).append(each)
    lines: list[str] = []
    for alike in parts.values():
        lines += _lines(alike, f"{prefix}:", is_openmetrics)
    for other in (*others, *_PROCESS.collect()):
        lines += _lines((other,), "", is_openmetrics)
    if is_openmetrics:
        lines.append("# EOF\n")
    return "".join(lines).encode(), CONTENT_TYPE_LATEST if is_openmetrics else _TEXT_TYPE


def _lines(parts: Sequence[MetricFamily], prefix: str, is_openmetrics: bool) -> Iterator[str]:
    """Of one family: all samples of these, under the name of the first."""
    family = parts[0]
    # A counter is called as its samples are, but in OpenMetrics.
    is_counter = family.type == "counter" and not is_openmetrics
    name = f"{prefix}{family.name}{'_total' if is_counter else ''}"
    yield f"# HELP {name} {family.documentation.translate(_ESCAPES)}\n"
    yield f"# TYPE {name} {family.type}\n"
    for part in parts:
        if isinstance(part, Figures):
            shown = f"{prefix}{part.name}{'_total' if part.type == 'counter' else ''}"
            for values, value in part.figures:
                yield f"{shown}{_label_text(part.labels, values)} {_number(value)}\n"
            continue
        for sample in part.samples:
            # When a counter began Prometheus would keep as one more series for each.
            if not sample.name.endswith("_created"):
                labels = _label_text((*sample.labels,), (*sample.labels.values(),))
                yield f"{prefix}{sample.name}{labels} {_number(sample.value)}\n"


@lru_cache(maxsize=1 << 14)
def _label_text(labels: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Many series have the same labels, those of a worker, and every scrape has them again."""
    pairs = sorted(zip(labels, values, strict=True))
    texts = [f'{label}="{value.translate(_ESCAPES)}"' for label, value in pairs]
    return f"{{{','.join(texts)}}}" if texts else ""


def _number(value: float) -> str:
    text = repr(float(value))
    return _BEYOND.get(text, text)


def prefers_openmetrics(accept: str) -> bool:
    """Whether this `Accept` names OpenMetrics, and the plain text format not before it."""
    best = {_TEXT: 0.0, _OPENMETRICS: 0.0}
    for entry in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in entry.split(";"))
        name = _TEXT if kind in _ANYTHING else kind
        if name in best:
            best[name] = max(best[name], _quality(parameters))
    return best[_OPENMETRICS] > 0 and best[_OPENMETRICS] >= best[_TEXT]


def _quality(parameters: Iterable[str]) -> float:
    """The `q` among the parameters of an accepted type; 0 for one that means nothing."""
    for each in parameters:
        name, _, value = each.partition("=")
        if name.strip() == "q":
            try:
                quality = float(value)
            except ValueError:
                return 0.0
            return quality if math.isfinite(quality) else 0.0
    return 1.0

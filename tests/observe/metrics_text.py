"""Metrics as Prometheus would read them."""

from collections.abc import Iterable

from tandem.api.metrics_page import metrics_page
from tandem.facts.metrics import MetricFamily


def text_of(families: Iterable[MetricFamily]) -> str:
    """The page of these, without the figures of the process."""
    text, _ = metrics_page(families, prefix="tandem")
    return text.decode().partition("# HELP process_")[0]

"""Prometheus metrics by tenant: requests, rejections by reason, tokens, TTFT and TPOT. The label
`tenant` is one of a given list, or empty for everybody else, so that no client adds a series."""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import Counter, Gauge, Histogram

from tandem.facts.errors import Rejection
from tandem.observe.registry import MODEL_LABEL, ModelRegistry

TENANT_LABEL = "tenant"
# Fewer than of the whole gateway: there are so many for each tenant.
TTFT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
TPOT_SECONDS = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class OneTenant:
    """The metrics of one tenant."""

    requests: Counter
    open_requests: Gauge
    rejections: dict[Rejection, Counter]
    prompt_tokens: Counter
    cached_tokens: Counter
    generation_tokens: Counter
    ttft: Histogram
    tpot: Histogram


class TenantMetrics:
    """Of the tenants with these names, and of all others together. Each has all of its series from
    the start."""

    def __init__(self, registry: ModelRegistry, tenants: Iterable[str]) -> None:
        def counter(name: str, text: str, *more: str) -> Counter:
            labels = (MODEL_LABEL, TENANT_LABEL, *more)
            return registry.family_of(Counter, f"tenant_{name}", text, labels)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            labels = (MODEL_LABEL, TENANT_LABEL)
            return registry.family_of(Histogram, f"tenant_{name}", text, labels, buckets=buckets)

        requests = counter("requests", "Requests that arrived, by tenant")
        under_way = registry.family_of(
            Gauge,
            "tenant_open_requests",
            "Requests that wait or run, by tenant",
            (MODEL_LABEL, TENANT_LABEL),
        )
        rejections = counter("rejections", "Requests refused, by tenant and reason", "reason")
        prompt = counter("prompt_tokens", "Prompt tokens of requests that got a token")
        cached = counter("cached_tokens", "Of these, tokens whose KV was found cached")
        generation = counter("generation_tokens", "Answer tokens of requests that have ended")
        ttft = histogram("time_to_first_token_seconds", "Arrival to first token", TTFT_SECONDS)
        tpot = histogram(
            "time_per_output_token_seconds", "Mean gap between tokens of a request", TPOT_SECONDS
        )

        def made(tenant: str) -> OneTenant:
            labels = (registry.model_name, tenant)
            return OneTenant(
                requests.labels(*labels),
                under_way.labels(*labels),
                {each: rejections.labels(*labels, str(each)) for each in Rejection},
                prompt.labels(*labels),
                cached.labels(*labels),
                generation.labels(*labels),
                ttft.labels(*labels),
                tpot.labels(*labels),
            )

        self._make = made
        self._others = made("")
        self._tenants: dict[str, OneTenant] = {}
        self.add_tenants(tenants)

    def add_tenants(self, tenants: Iterable[str]) -> None:
        """These as well; nothing changes for those that are known."""
        for tenant in tenants:
            if tenant not in self._tenants:
                self._tenants[tenant] = self._make(tenant)

    def of(self, tenant: str) -> OneTenant:
        """Its own, or those of everybody else."""
        return self._tenants.get(tenant, self._others)

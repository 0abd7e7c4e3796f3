"""The clients of `tandem demo`: one tenant's requests in one act, and what became of them as that
tenant measured it."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tandem.bench.client import Client, Endpoint, RequestFailed, ServerRefused
from tandem.bench.laws import Arrivals, LengthLaw
from tandem.bench.load import Asker, Asking, Clock, Pacing, run_load, start_clock
from tandem.bench.workload import (
    ContentSource,
    Conversation,
    PlannedRequest,
    Synthetic,
    arrive,
    plan_synthetic,
)
from tandem.config.cluster.file import Cluster
from tandem.facts.slo import Slo
from tandem.report.record import MeasuredRequest

TOO_MANY_REQUESTS = 429
# In a closed loop so many requests a client are planned: more than any act has time for.
PLENTY = 10_000
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class DemoTenant:
    """A tenant of the cluster file, and what its class was promised."""

    name: str
    service_class: str
    slo: Slo
    api_key: str

    @classmethod
    def of_class(cls, cluster: Cluster, service_class: str) -> "DemoTenant":
        """The first tenant of this class, with its first key."""
        terms = next(each for each in cluster.classes if each.name == service_class)
        tenant = next(each for each in cluster.tenants if each.service_class == service_class)
        return cls(tenant.name, service_class, terms.slo, tenant.api_keys[0])


@dataclass(frozen=True, slots=True)
class Shape:
    """Tokens of each prompt and of each answer."""

    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """A 429 as its client got it."""

    request_id: str
    reason: str
    retry_after_s: float | None


@dataclass
class TenantLoad:
    """What one tenant sent to `url` in one act, in the order in which it ended. Prompts of one
    `seed` share nothing with those of another."""

    tenant: DemoTenant
    url: str
    seed: int
    records: list[MeasuredRequest] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    span_s: float = 0.0
    _asker: Asker | None = None
    _waits: bool = False

    async def at_rate(self, shape: Shape, rate_rps: float, seconds: float) -> None:
        """By Poisson for so long, whatever the server does, and until all have ended."""
        planned = _requests(max(1, round(rate_rps * seconds)), shape)
        planned = arrive(planned, Arrivals(rate_rps), self.seed)
        await self._run(planned, Pacing(open_loop=True))

    async def in_turns(self, shape: Shape, clients: int, seconds: float) -> None:
        """So many clients, each with its next request when it has its answer, or after the time
        that a rejection asks for; after so long they leave, and what they wait for then does not
        count."""
        self._waits = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._run(_requests(PLENTY, shape), Pacing(False, clients))

    @property
    def sent(self) -> int:
        """How many have ended."""
        return len(self.records)

    @property
    def finished(self) -> list[MeasuredRequest]:
        return [record for record in self.records if record.finished]

    @property
    def kept(self) -> int:
        """How many answers kept what the class was promised."""
        return sum(record.keeps(self.tenant.slo) for record in self.records)

    @property
    def per_second(self) -> float:
        """Whole answers."""
        return len(self.finished) / self.span_s if self.span_s else 0.0

    async def _run(self, planned: Sequence[Conversation], pacing: Pacing) -> None:
        clock = start_clock()
        async with Client(Endpoint(self.url, self.tenant.api_key, TIMEOUT_S)) as client:
            model = await client.choose_model(None)
            asking = Asking(model.id, vocabulary_tokens=model.vocabulary)
            self._asker = Asker(client, asking, ContentSource(self.seed))
            try:
                await run_load(planned, pacing, self._send)
            finally:
                self.span_s = clock()

    async def _send(self, request: PlannedRequest, record: MeasuredRequest, clock: Clock) -> None:
        """Under an id of the client's own, by which `tandem explain` finds it afterwards."""
        assert self._asker is not None
        record.request_id = f"{self.tenant.name}-{self.seed}-{request.index}"
        try:
            await self._asker.ask(request, record, clock, {"X-Request-Id": record.request_id})
        except ServerRefused as refusal:
            rejection = Rejection(record.request_id, refusal.problem, refusal.retry_after_s)
            if refusal.status == TOO_MANY_REQUESTS:
                self.rejections.append(rejection)
                if self._waits:
                    await asyncio.sleep(refusal.retry_after_s or 0.0)
            else:
                self.failures.append(str(refusal))
        except RequestFailed as failure:
            self.failures.append(str(failure))
        self.records.append(record)


def _requests(count: int, shape: Shape) -> list[Conversation]:
    """All of this shape, arriving at 0."""
    prompts, answers = (
        LengthLaw("fixed", tokens) for tokens in (shape.prompt_tokens, shape.answer_tokens)
    )
    return plan_synthetic(Synthetic(count, prompts, answers))

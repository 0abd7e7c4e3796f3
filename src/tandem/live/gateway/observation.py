"""What a gateway shows of its cluster, together with the other gateways: the port `Observed`."""

import asyncio
from collections.abc import Callable
from itertools import chain

from msgspec import structs

from tandem.cluster.gateway.machine import GatewayMachine
from tandem.facts.overview import ClassSlo, Overview, RequestDetail, RequestLine, TimeBin
from tandem.live.clock import now_ns
from tandem.live.event_log import EventLog
from tandem.live.gateway.combined_overview import aligned, combined, latest
from tandem.live.gateway.history import RequestHistories
from tandem.live.gateway.other_gateways import OtherGateways
from tandem.live.gateway.overview import gateway_overview
from tandem.live.request_view import latest_requests, request_details
from tandem.messages.observation import (
    AskDetails,
    AskOverview,
    AskRequests,
    DetailsReported,
    ObservationAnswer,
    ObservationQuestion,
    OverviewReported,
    RequestsReported,
)
from tandem.observe.metrics import RequestMetrics
from tandem.observe.timeline import added_up

BINS_A_TURN = 32


class Observation:
    """Of the gateway of this machine, whose requests, histories and events these are. `slos` are
    those that requests are promised now."""

    def __init__(
        self,
        model: str,
        machine: GatewayMachine,
        requests: RequestMetrics,
        histories: RequestHistories,
        event_log: EventLog,
        slos: Callable[[], tuple[ClassSlo, ...]],
    ) -> None:
        self.others = OtherGateways(machine, self._answer)
        self._model, self._machine, self._requests = model, machine, requests
        self._histories, self._event_log, self._slos = histories, event_log, slos

    async def overview(self, account: str | None, since_bin: int = 0) -> Overview:
        """See the port `Observed`."""
        timeline = self._requests.timeline
        # One more, for the clocks of other machines.
        wanted = max(0, timeline.number_at(now_ns()) - since_bin + 2)
        reported = await self.others.ask(
            OverviewReported, lambda number: AskOverview(number, account, wanted)
        )
        at_ns = now_ns()
        answers = [each for each in reported.values() if each is not None]
        whole = combined(self._overview(account, at_ns), [each.overview for each in answers])
        own = tuple(timeline.since(since_bin, at_ns))
        elsewhere = chain(*(aligned(each, timeline.bin_ns, since_bin, at_ns) for each in answers))
        bins: list[TimeBin] = []
        for each in added_up(own, elsewhere):
            bins.append(each)
            if len(bins) % BINS_A_TURN == 0:
                # Clients' tokens need not wait for all of a quarter of an hour.
                await asyncio.sleep(0)
        silent = tuple(name for name, each in reported.items() if each is None)
        return structs.replace(whole, bins=tuple(bins), silent=silent)

    async def latest_requests(self, account: str | None, most: int) -> list[RequestLine]:
        """See the port `Observed`."""
        reported = await self.others.ask(
            RequestsReported, lambda number: AskRequests(number, account, most)
        )
        elsewhere = (each.lines for each in reported.values() if each is not None)
        own = latest_requests(self._histories, account, most)
        return latest(chain(own, *elsewhere), most)

    async def request_details(self, account: str | None, name: str) -> list[RequestDetail]:
        """See the port `Observed`."""
        reported = await self.others.ask(
            DetailsReported, lambda number: AskDetails(number, account, name)
        )
        elsewhere = (each.details for each in reported.values() if each is not None)
        return [*request_details(self._histories, account, name), *chain(*elsewhere)]

    def _answer(self, question: ObservationQuestion) -> ObservationAnswer:
        at_ns = now_ns()
        match question:
            case AskOverview(number, account, bins):
                first = self._requests.timeline.number_at(at_ns) - bins + 1
                counted = tuple(
                    each.counts() for each in self._requests.timeline.since(first, at_ns)
                )
                return OverviewReported(number, at_ns, self._overview(account, at_ns), counted)
            case AskRequests(number, account, most):
                lines = latest_requests(self._histories, account, most)
                return RequestsReported(number, tuple(lines))
            case AskDetails(number, account, name):
                details = request_details(self._histories, account, name)
                return DetailsReported(number, tuple(details))

    def _overview(self, account: str | None, at_ns: int) -> Overview:
        """Of this gateway alone, without bins."""
        queues = self._requests.queues()
        return gateway_overview(
            self._model,
            self._machine.status(at_ns),
            self._requests.timeline,
            self._event_log.events(at_ns),
            self._slos(),
            queues=tuple(each for each in queues if account in (None, each.tenant)),
            now_ns=at_ns,
        )

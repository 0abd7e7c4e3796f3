"""Adapters of a worker process are loaded as soon as a request that needs one is heard of, beside
the engine: its step waits for what is then left of that."""

import logging
from collections.abc import Sequence

from tandem.engine.adapters import AdapterCache
from tandem.facts.adapter import Adapter
from tandem.facts.errors import InvalidConfiguration
from tandem.kv.threads import WorkerThread
from tandem.live.processes.member import MemberInbox
from tandem.messages.node import GatewayConnected, GatewayGone, LeaveRequested, MessageFromGateway
from tandem.messages.worker import ImportsArrived, PrefillsArrived, RequestsArrived

logger = logging.getLogger(__name__)

# More wait nowhere: a step loads by itself what nobody has loaded ahead.
MOST_WAITING = 256


class AdapterLoading:
    """The `inbox` of a worker, whose messages are looked at as they pass. Between `start_loading`
    and `stop_loading` what they need is loaded into `cache`."""

    def __init__(self, inbox: MemberInbox, cache: AdapterCache) -> None:
        self._inbox = inbox
        self._cache = cache
        self._thread = WorkerThread[Adapter](
            "adapters", self._load, failed=self._failed, capacity=MOST_WAITING
        )

    def start_loading(self) -> None:
        self._thread.start_worker()

    def stop_loading(self) -> None:
        """It ends with what it does just now."""
        self._thread.stop_worker()

    def enqueue(
        self, event: GatewayConnected | MessageFromGateway | GatewayGone | LeaveRequested, /
    ) -> None:
        """Passed on at once."""
        if isinstance(event, MessageFromGateway):
            message = event.message
            if isinstance(message, RequestsArrived | PrefillsArrived | ImportsArrived):
                for request in message.requests:
                    if request.adapter is not None:
                        self._thread.post(request.adapter)
        self._inbox.enqueue(event)

    def fail(self, failure: Exception) -> None:
        self._inbox.fail(failure)

    def _load(self, adapter: Adapter) -> bool:
        try:
            self._cache.weights(adapter)
        except InvalidConfiguration as error:
            # Its request fails where it is to be computed.
            logger.warning("an adapter cannot be loaded ahead: %s", error)
        return True

    def _failed(self, failure: Exception, _: Sequence[Adapter]) -> None:
        self._inbox.fail(failure)

"""Response store: responses of the Responses API in memory, so that later calls go on from them.

Bounded in bytes, in number and in time. What was not used for longest leaves first, and of the
owner that holds most: nobody's responses push out those of somebody who keeps less. An owner (a
tenant, or a key of nobody in particular) never sees another's. Nothing of it is written anywhere.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

from tandem.api.clock_and_entropy import monotonic_s
from tandem.api.config import ResponseStoreConfig
from tandem.facts.fair_shares import FairShares

# One response may take this share of the store.
LARGEST_SHARE = 1 / 8
# Of an entry without its texts.
_ENTRY_BYTES = 1000


@dataclass(slots=True)
class StoredResponse:
    """A response and what it was made of, as JSON: the items of its own input, behind the
    conversation of the response `previous`. `response` is empty while it is being made."""

    response_id: str
    owner: str
    previous: str | None
    input_items: bytes
    used_s: float
    response: bytes = b""

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return _ENTRY_BYTES + len(self.input_items) + len(self.response)


class ResponseGone(Exception):
    """The response `response_id` is not stored, or not any more."""

    def __init__(self, response_id: str) -> None:
        super().__init__(response_id)
        self.response_id = response_id


class ResponseStore:
    """Use it from one event loop. Metrics are of the model of that name."""

    def __init__(
        self,
        config: ResponseStoreConfig,
        model_name: str = "",
        now_s: Callable[[], float] = monotonic_s,
    ) -> None:
        self._config = config
        self._model_name = model_name
        self._now_s = now_s
        # In the order in which they were used, over all owners.
        self._entries: OrderedDict[str, StoredResponse] = OrderedDict()
        self._shares: FairShares[str] = FairShares()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def held_bytes(self) -> int:
        return self._shares.held

    def metric_families(self) -> Iterable[Metric]:
        """At this moment; none where nothing is ever kept."""
        if not self._config.limit_bytes:
            return
        for name, text, value in (
            ("responses", "Responses that later calls may go on from", len(self)),
            ("bytes", "Memory of these responses", self.held_bytes),
        ):
            metric = GaugeMetricFamily(f"response_store_{name}", text, labels=("model_name",))
            metric.add_metric((self._model_name,), value)
            yield metric

    def begin(self, owner: str, response_id: str, previous: str | None, items: bytes) -> bool:
        """Keeps the input of a response that is being made: from now on it counts like any other,
        and may leave before it is complete. Gives whether it is kept."""
        entry = StoredResponse(response_id, owner, previous, items, self._now_s())
        if not self._may_keep(entry):
            return False
        self._entries[response_id] = entry
        self._shares.add_amount(response_id, owner, entry.size_bytes)
        self._make_room()
        return response_id in self._entries

    def complete(self, response_id: str, response: bytes) -> None:
        """The response is made, which is kept unless it has become too large."""
        entry = self._entries.get(response_id)
        if entry is None:
            return
        entry.response = response
        if not self._may_keep(entry):
            self._drop(response_id)
            return
        self._use(entry)
        self._make_room()

    def find(self, owner: str, response_id: str) -> StoredResponse:
        """A complete response. Raises `ResponseGone`."""
        entry = self._entries.get(response_id)
        if entry is None or entry.owner != owner or not entry.response or self._is_old(entry):
            raise ResponseGone(response_id)
        self._use(entry)
        return entry

    def conversation(self, owner: str, response_id: str) -> list[StoredResponse]:
        """A response behind those that it goes on from, the oldest first: all of them are used.
        Raises `ResponseGone` for the first that is missing."""
        turns = [self.find(owner, response_id)]
        while (previous := turns[-1].previous) is not None:
            turns.append(self.find(owner, previous))
        return turns[::-1]

    def delete(self, owner: str, response_id: str) -> None:
        """Raises `ResponseGone`."""
        self._drop(self.find(owner, response_id).response_id)

    def _may_keep(self, entry: StoredResponse) -> bool:
        return entry.size_bytes <= self._config.limit_bytes * LARGEST_SHARE

    def _is_old(self, entry: StoredResponse) -> bool:
        return self._now_s() - entry.used_s > self._config.lifetime_s

    def _use(self, entry: StoredResponse) -> None:
        entry.used_s = self._now_s()
        self._entries.move_to_end(entry.response_id)
        # Its owner's newest again.
        self._shares.discard(entry.response_id)
        self._shares.add_amount(entry.response_id, entry.owner, entry.size_bytes)

    def _make_room(self) -> None:
        while self._entries and self._is_old(next(iter(self._entries.values()))):
            self._drop(next(iter(self._entries)))
        limits = self._config
        while self.held_bytes > limits.limit_bytes or len(self) > limits.limit_responses:
            sums = self._shares.sums()
            largest = min(sums, key=lambda owner: (-sums[owner], owner))
            self._drop(self._shares.oldest(largest))

    def _drop(self, response_id: str) -> None:
        del self._entries[response_id]
        self._shares.discard(response_id)

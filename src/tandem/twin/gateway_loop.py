"""The event loop of a simulated gateway: a serial resource between clients and the gateway's
machine. Requests on their way in and tokens on their way out take turns, so that a queue forms
where they ask for more than one core does."""

from collections.abc import Callable

from tandem.cost.worker import ServingCost
from tandem.facts.request import FinishReason
from tandem.messages.worker import EmitTokens
from tandem.twin.event_queue import EventQueue
from tandem.twin.recorder import Recorder

Token = tuple[int, FinishReason | None]


class GatewayLoop:
    """Of one start of a gateway; nothing happens in it any more once that is not `alive`."""

    def __init__(
        self,
        serving: ServingCost,
        queue: EventQueue,
        recorder: Recorder,
        alive: Callable[[], bool],
    ) -> None:
        self._serving = serving
        self._queue = queue
        self._recorder = recorder
        self._alive = alive
        self._free_ns = 0
        # By request, the tokens that its client's next event will bring.
        self._waiting: dict[str, list[Token]] = {}

    def take_request(self, prompt_tokens: int, submit: Callable[[int], None]) -> None:
        """A client calls now; `submit` is called when a worker could start on the prompt, also when
        the gateway is gone by then."""
        serving = self._serving
        wait_ns = _ns(serving.request_wait_s + prompt_tokens * serving.prompt_token_s)
        self._queue.at(self._turn_ns(serving.request_s) + wait_ns, submit)

    def send_tokens(self, emission: EmitTokens) -> None:
        """Each client gets its token when it is its turn, with those that came meanwhile: a loop
        that is behind sends several in one event."""
        self._turn_ns(self._serving.message_s)
        for request_id, token, reason in zip(
            emission.request_ids, emission.tokens, emission.finish_reasons, strict=True
        ):
            waiting = self._waiting.get(request_id)
            if waiting is not None:
                waiting.append((token, reason))
                continue
            self._waiting[request_id] = [(token, reason)]
            self._queue.at(self._turn_ns(self._serving.token_s), self._sender(request_id))

    def _sender(self, request_id: str) -> Callable[[int], None]:
        def send(now_ns: int) -> None:
            for token, reason in self._waiting.pop(request_id):
                if self._alive() and self._recorder.waits(request_id):
                    event = EmitTokens((request_id,), (token,), (reason,), (False,), (0,))
                    self._recorder.delivered(event, (now_ns,))

        return send

    def _turn_ns(self, busy_s: float) -> int:
        """When the loop has done this, after all before it."""
        self._free_ns = max(self._free_ns, self._queue.now_ns) + _ns(busy_s)
        return self._free_ns


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)

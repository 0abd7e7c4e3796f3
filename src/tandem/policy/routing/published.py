"""Published cache-aware routing formulas of other projects: the baselines that cost routing has to
beat."""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.facts.fleet import Role
from tandem.policy.views import RequestView, WorkerView


@dataclass(frozen=True, slots=True)
class PrefixFirst:
    """The longest cached prefix, unless load is out of balance (SGLang gateway, `cache_aware`).

    When max - min > `imbalance_requests` and max > `imbalance_ratio` * min: the shortest queue.
    Else the best match, where it covers more than `match_rate` of the prompt (unit: minus the share
    of the prompt). Else the least loaded (unit: requests).
    """

    imbalance_requests: int = 64
    imbalance_ratio: float = 1.5
    match_rate: float = 0.3

    def scores(self, request: RequestView, views: Sequence[WorkerView], phase: Role) -> list[float]:
        del phase
        loads = [float(view.requests) for view in views]
        least, most = min(loads), max(loads)
        unbalanced = most - least > self.imbalance_requests and most > self.imbalance_ratio * least
        if unbalanced or not request.hits:
            return loads
        rates = [_matched_share(request, view) for view in views]
        return [-rate for rate in rates] if max(rates) > self.match_rate else loads


@dataclass(frozen=True, slots=True)
class BlockCost:
    """Blocks to prefill and blocks to decode (NVIDIA Dynamo, `kv-router`, with its weights):

    cost = max(active prefill blocks + prompt blocks - credit, 0) + active decode blocks + prompt
    blocks, credit = 1.0 device + 0.75 host + 0.25 disk blocks hit. A worker of one phase pays for
    that phase alone. Unit: KV blocks.
    """

    device_credit: float = 1.0
    host_credit: float = 0.75
    disk_credit: float = 0.25

    def scores(self, request: RequestView, views: Sequence[WorkerView], phase: Role) -> list[float]:
        return [
            (self._prefill_blocks(request, view) if phase.prefills else 0.0)
            + (self._decode_blocks(request, view) if phase.decodes else 0.0)
            for view in views
        ]

    def _prefill_blocks(self, request: RequestView, view: WorkerView) -> float:
        hits = request.hit(view.worker)
        credit_tokens = (
            self.device_credit * hits.device_tokens
            + self.host_credit * hits.host_tokens
            + self.disk_credit * hits.disk_tokens
        )
        active_blocks = view.queued_prefill_tokens / view.block_size
        prompt_blocks = _prompt_blocks(request, view)
        return max(active_blocks + prompt_blocks - credit_tokens / view.block_size, 0.0)

    def _decode_blocks(self, request: RequestView, view: WorkerView) -> float:
        active_tokens = view.context_tokens + view.expected_context_tokens
        return active_tokens / view.block_size + _prompt_blocks(request, view)


@dataclass(frozen=True, slots=True)
class WeightedScore:
    """A weighted sum of three marks between 0 and 1 (llm-d-router, default weights 2, 2, 3):

    total = 2 (qmax - q) / (qmax - qmin) + 2 (1 - KV in use) + 3 matched share of the prompt, q the
    waiting requests. Unit: minus the total, since the smallest score wins.
    """

    queue_weight: float = 2.0
    kv_weight: float = 2.0
    prefix_weight: float = 3.0

    def scores(self, request: RequestView, views: Sequence[WorkerView], phase: Role) -> list[float]:
        del phase
        queues = [view.waiting_requests for view in views]
        longest = max(queues)
        # All equal: all get the full mark.
        spread = longest - min(queues)
        return [
            -(
                self.queue_weight * ((longest - queue) / spread if spread else 1.0)
                + self.kv_weight * (1.0 - view.kv_used)
                + self.prefix_weight * _matched_share(request, view)
            )
            for view, queue in zip(views, queues, strict=True)
        ]


def _matched_share(request: RequestView, view: WorkerView) -> float:
    return request.hit(view.worker).tokens / request.prompt_tokens


def _prompt_blocks(request: RequestView, view: WorkerView) -> int:
    return -(-request.prompt_tokens // view.block_size)

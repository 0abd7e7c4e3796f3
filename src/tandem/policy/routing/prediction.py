"""Predicted seconds of a request on a worker (wait, fetch, prefill, decode), by the one cost model,
for every policy alike."""

from collections.abc import Sequence

from msgspec import Struct

from tandem.cost.adapters import adapter_load_seconds
from tandem.cost.worker import LinkCost, StepShape, WorkerCost
from tandem.facts.fleet import Role, Tier
from tandem.policy.views import NO_HITS, RequestView, TierHits, WorkerView

# A chunk's time is taken as linear in its tokens up to this error at its half.
BENT = 1.25
POINTS_A_CHUNK = 32


class PrefillCurve:
    """The seconds that a step time asks for the first so many tokens of a prompt, chunk by chunk.

    A router asks for a thousand workers at once, so the sums are kept: exact at whole chunks,
    linear in between. Where that is far off, because attention takes most of a chunk (small models,
    large chunks), there are more points in each. The curve is convex, as later chunks attend to
    more; what lies between two points is therefore never cheaper for starting earlier. It remembers
    nothing but values of a pure function.
    """

    def __init__(self, cost: WorkerCost) -> None:
        self.cost = cost
        self.chunk_tokens = cost.chunk_tokens
        self.stages = cost.step_time.stages
        # Reading the weights once: what a step takes however little it computes.
        self.step_s = cost.step_time.decode_seconds(1, 1)
        self.chunk_s = self._chunk_seconds(0, cost.chunk_tokens)
        half_s = self._chunk_seconds(0, cost.chunk_tokens // 2)
        bent = self.chunk_s > 2 * BENT * half_s and cost.chunk_tokens % POINTS_A_CHUNK == 0
        # Points in a chunk, and the tokens from one to the next.
        self._points = POINTS_A_CHUNK if bent else 1
        self._width = cost.chunk_tokens // self._points
        self._sums = [0.0]

    def seconds(self, tokens: float) -> float:
        """Compute the first `tokens` of a prompt, alone, in one stage of the pipeline."""
        point = int(tokens // self._width)
        after = self._until_point(point + 1)
        before = self._sums[point]
        return before + (after - before) * (tokens / self._width - point)

    def between(self, context_tokens: int, prompt_tokens: int) -> float:
        """Compute the prompt from `context_tokens` on. The last chunk is half full on average, and
        a step takes at least `step_s`: half of one is added."""
        return self.seconds(prompt_tokens) - self.seconds(context_tokens) + self.step_s / 2

    def fill_seconds(self, compute_s: float) -> float:
        """What one prompt waits for in a pipeline: its first chunk passes all stages."""
        return (self.stages - 1) * min(compute_s, self.chunk_s)

    def queue_seconds(self, queued_tokens: int) -> float:
        """Work off prompts of which only the sum is known: their chunks fill the steps, and their
        attention to earlier chunks of their own, which nobody reported, is left out."""
        if not queued_tokens:
            return 0.0
        return queued_tokens / self.chunk_tokens * self.chunk_s + self.step_s / 2

    def _until_point(self, point: int) -> float:
        while len(self._sums) <= point:
            chunks, before = divmod(len(self._sums) - 1, self._points)
            seconds = self._chunk_seconds(chunks * self.chunk_tokens, (before + 1) * self._width)
            self._sums.append(self._sums[chunks * self._points] + seconds)
        return self._sums[point]

    def _chunk_seconds(self, context_tokens: int, tokens: int) -> float:
        shape = StepShape(chunks=((context_tokens, tokens),), sampled_rows=1)
        return self.cost.step_time.seconds(shape)


class Quote(Struct, frozen=True):
    """Predicted for one worker. `ttft_s` is until its part of the first token is done, `tpot_s` the
    gap between later tokens (0 where it decodes none). `lost_s` is what everybody together loses:
    this request until its last token, and each neighbour by being slowed down."""

    ttft_s: float
    tpot_s: float
    lost_s: float


class WorkerEstimate(Struct, frozen=True):
    """What is true of a worker whatever comes next. `stretch` is how much longer a chunk takes with
    the running decodes mixed into its step; `neighbours` decode with `gap_s` between tokens and
    attend to `context_tokens`; a new prompt starts after `wait_s`, with what its first token takes
    beside the steps. Whatever its work, a request takes `entry_s` and `prompt_token_s` for each
    token of its prompt. One of up to `room_tokens` finds its blocks and a slot at once."""

    view: WorkerView
    curve: PrefillCurve
    neighbours: int
    context_tokens: int
    gap_s: float
    stretch: float
    wait_s: float
    entry_s: float
    prompt_token_s: float
    room_tokens: int


class Fetch(Struct, frozen=True):
    """Which cached prefix to use: the worker's own tiers up to `own_end_token`, then the shared
    pool up to `end_token`. `seconds` is how long pulling it takes."""

    seconds: float
    own_end_token: int
    end_token: int


class Predictor:
    """Quotes for many workers at once.

    It keeps what follows from a cost or from an unchanged view alone, so a caller that passes the
    same `WorkerView` and `WorkerCost` objects again is answered faster, and never differently.
    """

    def __init__(self) -> None:
        self._curves: dict[int, PrefillCurve] = {}
        self._estimates: dict[str, WorkerEstimate] = {}

    def prefill_quotes(
        self, request: RequestView, views: Sequence[WorkerView], phase: Role
    ) -> list[Quote]:
        """For workers that compute the prompt, and with `phase` BOTH also talk.

        TTFT = wait + pull + prefill + room, and the way in and out where it was measured. The wait
        works off the queued prompt tokens while running decodes take their share of every step.
        """
        self._forget_old(len(views))
        prompt_tokens, remote_tokens = request.prompt_tokens, request.remote_tokens
        hits_of = request.hits.get
        output_tokens = request.expected_output_tokens if phase.decodes else 0.0
        needed_tokens, context_tokens = prompt_tokens + output_tokens, _mean_context(request)
        cold: dict[int, float] = {}
        quotes = []
        estimates = self._estimates
        for view in views:
            # In line, as what follows: a large fleet is gone through for every request.
            known_estimate = estimates.get(view.worker)
            if known_estimate is None or known_estimate.view is not view:
                known_estimate = self._estimate(view)
            estimate = known_estimate
            curve, neighbours = estimate.curve, estimate.neighbours
            hits = hits_of(view.worker, NO_HITS)
            pull_s = 0.0
            if remote_tokens or hits is not NO_HITS:
                fetch = cheapest_fetch(request, hits, estimate)
                pull_s = fetch.seconds
                compute_s = curve.between(fetch.end_token, prompt_tokens)
            else:
                known = cold.get(id(curve))
                if known is None:
                    known = cold[id(curve)] = curve.between(0, prompt_tokens)
                compute_s = known
            ttft_s = estimate.wait_s + pull_s + estimate.stretch * compute_s
            if curve.stages > 1:
                ttft_s += curve.fill_seconds(compute_s)
            if needed_tokens - hits.device_tokens > estimate.room_tokens:
                ttft_s += room_seconds(request, hits, estimate, output_tokens)
            ttft_s += estimate.entry_s + estimate.prompt_token_s * prompt_tokens
            if request.lacks_adapter(view):
                # The step in which it starts waits for it, and all others of that step.
                load_s = adapter_load_seconds(request.adapter_bytes)
                ttft_s, compute_s = ttft_s + load_s, compute_s + load_s
            tpot_s, decode_lost_s = 0.0, 0.0
            if output_tokens:
                tpot_s, decode_lost_s = _decoding(estimate, output_tokens, context_tokens)
            # Whoever comes next waits behind this prompt, as it does behind those that wait now: as
            # many, in a steady queue.
            harmed = neighbours + view.waiting_requests
            quotes.append(Quote(ttft_s, tpot_s, ttft_s + harmed * compute_s + decode_lost_s))
        return quotes

    def decode_quotes(
        self, request: RequestView, views: Sequence[WorkerView], source: LinkCost
    ) -> list[Quote]:
        """For workers that take over after the first token, when the KV comes over the link
        `source` of the prefill worker: TTFT = transfer of what the device lacks + room."""
        self._forget_old(len(views))
        prompt_tokens, output_tokens = request.prompt_tokens, request.expected_output_tokens
        needed_tokens, context_tokens = prompt_tokens + output_tokens, _mean_context(request)
        hits_of = request.hits.get
        quotes = []
        for view in views:
            estimate = self._estimate(view)
            hits = hits_of(view.worker, NO_HITS)
            moved_bytes = view.cost.kv_bytes(max(0, prompt_tokens - hits.device_tokens))
            network = view.cost.network
            ttft_s = network.seconds(moved_bytes)
            if source is not network:
                # The slower end of the path sets the pace.
                ttft_s = max(ttft_s, source.seconds(moved_bytes))
            if needed_tokens - hits.device_tokens > estimate.room_tokens:
                ttft_s += room_seconds(request, hits, estimate, output_tokens)
            if request.lacks_adapter(view):
                load_s = adapter_load_seconds(request.adapter_bytes)
                ttft_s, moving_lost_s = ttft_s + load_s, estimate.neighbours * load_s
            else:
                moving_lost_s = 0.0
            tpot_s, decode_lost_s = _decoding(estimate, output_tokens, context_tokens)
            quotes.append(Quote(ttft_s, tpot_s, ttft_s + moving_lost_s + decode_lost_s))
        return quotes

    def fetch(self, request: RequestView, view: WorkerView) -> Fetch:
        """Which cached prefix the worker should use, if the request goes there."""
        return cheapest_fetch(request, request.hit(view.worker), self._estimate(view))

    def _estimate(self, view: WorkerView) -> WorkerEstimate:
        estimate = self._estimates.get(view.worker)
        if estimate is None or estimate.view is not view:
            estimate = self._estimates[view.worker] = _estimated(view, self._curve(view.cost))
        return estimate

    def _curve(self, cost: WorkerCost) -> PrefillCurve:
        # The curve holds the cost, so its id cannot pass to another one.
        curve = self._curves.get(id(cost))
        if curve is None:
            curve = self._curves[id(cost)] = PrefillCurve(cost)
        return curve

    def _forget_old(self, workers: int) -> None:
        """Workers come and go; what is kept of those that went must not grow for ever."""
        if max(len(self._estimates), len(self._curves)) > 1_000 + 4 * workers:
            self._estimates.clear()
            self._curves.clear()


def cheapest_fetch(request: RequestView, hits: TierHits, estimate: WorkerEstimate) -> Fetch:
    """Which cached prefix to use beyond the device's.

    Each tier in turn is pulled after the faster ones, or the pull ends and the rest is computed,
    whichever is cheaper for the request and all whom it delays together; the shared pool may take
    over after any of them. A pull delays nobody else, so it is worth more beside many decodes.
    """
    curve, cost = estimate.curve, estimate.view.cost
    # The last prompt token is always computed: its logits start the answer.
    last = request.prompt_tokens - 1
    price = estimate.stretch + estimate.neighbours + estimate.view.waiting_requests
    end = min(hits.device_tokens, last)
    pulled_s = 0.0
    best = Fetch(0.0, end, end)
    best_s = -price * curve.seconds(end)
    for tier, tokens in (
        (Tier.DEVICE, 0),
        (Tier.HOST, hits.host_tokens),
        (Tier.DISK, hits.disk_tokens),
    ):
        tokens = min(tokens, last - end)
        if tokens or tier is Tier.DEVICE:
            pulled_s += cost.pull_seconds(tier, tokens)
            end += tokens
            stops = [Fetch(pulled_s, end, end)]
            remote_end = min(request.remote_tokens, last)
            if remote_end > end:
                remote_s = cost.pull_seconds(Tier.REMOTE, remote_end - end)
                stops.append(Fetch(pulled_s + remote_s, end, remote_end))
            for stop in stops:
                seconds = stop.seconds - price * curve.seconds(stop.end_token)
                if seconds < best_s:
                    best_s, best = seconds, stop
    return best


def room_seconds(
    request: RequestView, hits: TierHits, estimate: WorkerEstimate, output_tokens: float
) -> float:
    """How long until enough running sequences ended to give this one its KV blocks and its slot.

    All of them are replaced once in the time of an answer (Little's law), so a shortage costs its
    share of the residents times that time.
    """
    view = estimate.view
    tokens = request.prompt_tokens + output_tokens - hits.device_tokens
    free_blocks, total_blocks = view.free_blocks, view.total_blocks
    # A request larger than the whole pool is refused elsewhere.
    missing_blocks = min(tokens / view.block_size + 1.0, total_blocks) - free_blocks
    missing_slots = _missing_slots(view)
    if missing_blocks <= 0.0 and missing_slots <= 0:
        return 0.0
    share = max(
        missing_blocks / max(1, total_blocks - free_blocks), missing_slots / view.max_sequences
    )
    return share * request.expected_output_tokens * estimate.gap_s


def _missing_slots(view: WorkerView) -> int:
    """Of one more sequence; none where it is not positive."""
    taken = view.running_sequences + view.waiting_requests + view.expected_decodes
    return taken + 1 - view.max_sequences


def _estimated(view: WorkerView, curve: PrefillCurve) -> WorkerEstimate:
    neighbours = view.running_sequences + view.expected_decodes
    context_tokens = view.context_tokens + view.expected_context_tokens
    step_s = view.cost.decode_stage_seconds(neighbours, context_tokens)
    # Decodes come first in a step, and chunks get the rest of its tokens. The weights are read
    # once for both, so the decodes add only what they need beyond that.
    chunk_tokens = max(1, curve.chunk_tokens - -(-neighbours // curve.stages))
    added_s = max(0.0, step_s - curve.step_s) * curve.chunk_tokens / chunk_tokens
    stretch = 1.0 + added_s / curve.chunk_s
    serving = view.cost.serving
    rests = not neighbours and not view.waiting_requests
    return WorkerEstimate(
        view=view,
        curve=curve,
        neighbours=neighbours,
        context_tokens=context_tokens,
        gap_s=curve.stages * step_s,
        stretch=stretch,
        wait_s=stretch * curve.queue_seconds(view.queued_prefill_tokens)
        + view.cost.correction.first_token_s,
        entry_s=serving.entry_seconds(0) + (serving.cold_s if rests else 0.0),
        prompt_token_s=serving.prompt_token_s,
        room_tokens=(view.free_blocks - 1) * view.block_size if _missing_slots(view) <= 0 else -1,
    )


def _mean_context(request: RequestView) -> int:
    """What its decodes attend to, in the middle of its answer."""
    return request.prompt_tokens + int(request.expected_output_tokens) // 2


def _decoding(
    estimate: WorkerEstimate, output_tokens: float, context_tokens: int
) -> tuple[float, float]:
    """One more decode here: the gap between its tokens, and the seconds that it takes for them
    all, together with what its neighbours wait longer in that time."""
    neighbours = estimate.neighbours
    gap_s = estimate.view.cost.decode_seconds(
        neighbours + 1, estimate.context_tokens + context_tokens
    )
    longer_s = gap_s - estimate.gap_s
    # A step that only fills a pipeline harms nobody.
    harm_s = neighbours * longer_s if longer_s > 0.0 else 0.0
    return gap_s, output_tokens * (gap_s + harm_s)


def worthwhile_pulls(
    request: RequestView, worker: WorkerView, predictor: Predictor
) -> tuple[tuple[Tier, int], ...]:
    """The runs to pull, in the order of the prompt: up to which token each tier's run reaches.

    A tier must earn its place: what is quicker computed again is not pulled.
    """
    fetch = predictor.fetch(request, worker)
    hit = request.hit(worker.worker)
    reached = min(hit.device_tokens, fetch.own_end_token)
    ends: list[tuple[Tier, int]] = []
    for tier, tokens in ((Tier.HOST, hit.host_tokens), (Tier.DISK, hit.disk_tokens)):
        end = min(reached + tokens, fetch.own_end_token)
        if end > reached:
            ends.append((tier, end))
            reached = end
    if fetch.end_token > reached:
        ends.append((Tier.REMOTE, fetch.end_token))
    return tuple(ends)


def pulls_if_evicted(request: RequestView, worker: WorkerView) -> tuple[tuple[Tier, int], ...]:
    """As `worthwhile_pulls`, of what lies on the worker's device and may be evicted before the
    request starts, because it has to wait; its own slower tiers have it too, where it was written
    through. Nothing where it starts at once."""
    blocks = -(-request.prompt_tokens // worker.block_size)
    waits = worker.waiting_requests > 0 or worker.running_sequences >= worker.max_sequences
    device_tokens = request.hit(worker.worker).device_tokens
    tier = next((each for each in (Tier.HOST, Tier.DISK) if each in worker.cost.tiers), None)
    if tier is None or not device_tokens or not (waits or worker.free_blocks <= blocks):
        return ()
    # Whole blocks, without the last token of the prompt, which is always computed.
    last = (request.prompt_tokens - 1) // worker.block_size * worker.block_size
    end_token = min(device_tokens, last)
    return ((tier, end_token),) if end_token else ()

"""The fits of a calibration: what serving costs beside the engine, from what a client and the
server's own totals of steps say; where two workers share cores, by playing the same load in the
simulator."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tandem.commands.calibration_load import MeasuredLoad, Seen, Steps
from tandem.commands.engine_grid import TimedEngine
from tandem.commands.measured_cluster import with_profile
from tandem.commands.scenario import scenario_of
from tandem.config.cluster.file import Cluster, read_cluster
from tandem.config.hardware.pools import pool_cost
from tandem.cost.fitted import COEFFICIENTS, FittedStepTime, from_fields, to_fields
from tandem.cost.serving import (
    COLD_AFTER_S,
    fit_entry,
    fit_gateway,
    fit_steps,
    fit_transfer,
    rounded,
    serving_fields,
    step_seconds,
    transfer_fields,
)
from tandem.cost.worker import (
    NO_SERVING_COST,
    LinkCost,
    ServingCost,
    StepShape,
    StepTime,
    WorkerCost,
)
from tandem.facts.step_totals import StepTotals
from tandem.facts.trace import TraceRow
from tandem.report.record import MeasuredRequest, RequestOutcome, RunRecord
from tandem.twin.simulation import Simulation, rare_garbage_collections

LONGEST_PROMPT_TOKENS = 512
LONGEST_ANSWER_TOKENS = 128
# The first guess at how much two workers slow each other, and how often it is mended.
FIRST_SLOWDOWN = 1.3
SLOWDOWN_ROUNDS = 4
MOST_SLOWDOWN = 4.0


@dataclass(frozen=True)
class LoadLengths:
    """Drawn loads have prompts and answers of up to so many tokens, evenly."""

    prompt_tokens: int
    answer_tokens: int

    @property
    def means(self) -> tuple[int, int]:
        return self.prompt_tokens // 2, self.answer_tokens // 2

    @classmethod
    def within(cls, context_tokens: int) -> "LoadLengths":
        return cls(
            min(LONGEST_PROMPT_TOKENS, context_tokens // 2),
            min(LONGEST_ANSWER_TOKENS, context_tokens // 4),
        )


@dataclass(frozen=True)
class SimulatedServer:
    """The cluster file that is measured, `text`, in the simulator; `folder` takes files."""

    text: str
    folder: Path

    @property
    def two_workers(self) -> bool:
        return len(self._cluster(self.text).pools) > 1

    @property
    def max_sequences(self) -> int:
        return self._cluster(self.text).pools[0].max_num_seqs

    @property
    def lengths(self) -> LoadLengths:
        context_tokens = self._cluster(self.text).max_model_len
        return LoadLengths.within(context_tokens or 4 * LONGEST_PROMPT_TOKENS)

    def cost(self, profile: Path | None = None) -> WorkerCost:
        """Of its first worker."""
        cluster = self._cluster(with_profile(self.text, profile) if profile else self.text)
        return pool_cost(cluster, cluster.pools[0])

    def capacity_rps(self, served: StepTime, serving: ServingCost = NO_SERVING_COST) -> float:
        """Requests a second beyond which a queue grows for ever. Two workers, each of which then
        computes all the time, slow each other as `serving` has it."""
        prompt_tokens, answer_tokens = self.lengths.means
        rows = self.max_sequences
        gap_s = served.decode_seconds(rows, rows * (prompt_tokens + answer_tokens // 2))
        prefill_s = served.seconds(StepShape(((0, prompt_tokens),), sampled_rows=1))
        decode_s = answer_tokens * gap_s / rows
        if self.two_workers:
            prefill_s *= serving.prefill_slowdown
            decode_s *= serving.decode_slowdown
            return 1.0 / max(prefill_s, decode_s)
        return 1.0 / (prefill_s + decode_s)

    def play(
        self, live: Sequence[MeasuredRequest], profile: Path
    ) -> tuple[Sequence[RequestOutcome], Steps]:
        """The same requests at the instants at which the client sent them, by this profile; and
        what the steps of each worker took."""
        first_ns = min(each.arrival_ns for each in live)
        rows = [
            TraceRow((each.arrival_ns - first_ns) / 1e9, each.prompt_tokens, each.emitted_tokens)
            for each in sorted(live, key=lambda each: each.arrival_ns)
        ]
        scenario = scenario_of(self._cluster(with_profile(self.text, profile)))
        simulation = Simulation(scenario, rows, RunRecord(settings={}))
        with rare_garbage_collections():
            run = simulation.run(None)
        steps = {
            name: worker.machine.work.machine.step_tally.totals
            for name, worker in simulation.cluster.workers.items()
        }
        return run.requests, steps

    def at_speed_of(self, steps: Steps, profile: Path) -> tuple[Path, float]:
        """The profile of a machine as quick as it was during these steps, and how many times as
        long as by `profile` they took."""
        record = json.loads(profile.read_text(encoding="utf-8"))
        served = from_fields(record["served"], "served")
        everything = [each for of in steps.values() for each in of]
        longer = sum(each.duration_ns for each in everything) / 1e9
        longer /= step_seconds(served, everything)
        costs = {name: getattr(served, name) * longer for name in COEFFICIENTS}
        scaled = self.folder / "at_speed.json"
        write_profile(scaled, record | {"served": costs})
        return scaled, longer

    def _cluster(self, text: str) -> Cluster:
        file = self.folder / "simulated.yaml"
        file.write_text(text, encoding="utf-8")
        return read_cluster(str(file))


class ProfileFit:
    """The profile that explains what was `seen` of a server around this engine; `record` has what
    is known of the engine alone."""

    def __init__(
        self, server: SimulatedServer, engine: TimedEngine, record: dict[str, Any], seen: Seen
    ) -> None:
        self.record = dict(record)
        self._server = server
        self._engine = engine
        self._seen = seen

    def fit(self) -> dict[str, Any]:
        """The record of the profile. Raises `InvalidConfiguration` where too little was seen."""
        seen = self._seen
        # Where two workers compute, mixed loads say how much they slow each other.
        loads = seen.loads if self._server.two_workers else [*seen.loads, *seen.mixed]
        served = _fit_steps(self._engine, loads)
        self.record["served"] = to_fields(served)
        gateway = fit_gateway([load.loop for load in (*seen.loads, *seen.mixed)])
        entry = fit_entry(served, gateway, seen.first_tokens())
        serving = ServingCost(
            request_s=gateway.request_s,
            message_s=gateway.message_s,
            token_s=gateway.token_s,
            request_wait_s=entry.request_wait_s,
            prompt_token_s=entry.prompt_token_s,
            cold_s=seen.cold(),
            cold_after_s=COLD_AFTER_S,
        )
        transfers = seen.transfers() if self._server.two_workers else []
        if transfers:
            cost = self._server.cost()
            link = fit_transfer([(cost.kv_bytes(tokens), seconds) for tokens, seconds in transfers])
            self.record["kv_transfer"] = transfer_fields(link)
        if self._server.two_workers:
            serving = self._with_slowdowns(serving, served)
        self.record["serving"] = serving_fields(rounded(serving))
        if transfers:
            self.record["kv_transfer"] = transfer_fields(self._under_load(link))
        self.record["measured"] = {
            "noise_percent": round(100 * seen.noise(), 1),
            "first_tokens": [asdict(each) for each in seen.first_tokens()],
            "gaps": [
                {"sequences": streams, "seconds": median(seconds)}
                for streams, seconds in sorted(seen.gap_s.items())
            ],
            "kv_transfers": [
                {"prompt_tokens": tokens, "seconds": seconds} for tokens, seconds in transfers
            ],
            "loops": [asdict(load.loop) for load in (*seen.loads, *seen.mixed)],
            "steps": list(_step_figures(served, seen)),
        }
        return self.record

    def _with_slowdowns(self, serving: ServingCost, served: FittedStepTime) -> ServingCost:
        """How much longer steps take while the other worker computes: so much that the simulator's
        steps of the mixed loads take as long as the server's. Both are compared with `served` at
        what they computed, as batches need not be the same."""
        live = [load.steps for load in self._seen.mixed]
        wanted = [_lengthening(served, live, chunked=chunked) for chunked in (True, False)]
        slowdowns = [FIRST_SLOWDOWN, FIRST_SLOWDOWN]
        alone = self._lengthenings(serving, served, [1.0, 1.0])
        for _ in range(SLOWDOWN_ROUNDS):
            found = self._lengthenings(serving, served, slowdowns)
            for kind in (0, 1):
                # So much of the time the other one computes, as far as it can be seen.
                beside = (found[kind] - alone[kind]) / max(1e-6, slowdowns[kind] - 1.0)
                added = (wanted[kind] - alone[kind]) / beside if beside > 0.01 else 0.0
                slowdowns[kind] = min(MOST_SLOWDOWN, max(1.0, 1.0 + added))
                if slowdowns[kind] == 1.0:
                    slowdowns[kind] = 1.0 + 1e-3
        prefill, decode = (each if each > 1.01 else 1.0 for each in slowdowns)
        return replace(serving, prefill_slowdown=prefill, decode_slowdown=decode)

    def _under_load(self, link: LinkCost) -> LinkCost:
        """A transfer of requests that are alone, with the latency that it has while others are
        served, too: its messages and threads wait for processors that compute steps. As much more
        as answers of the lightest mixed load wait longer for their second token than in the
        simulator; of heavier ones, many wait for room."""
        if not self._seen.mixed:
            return link
        profile = self._server.folder / "tried.json"
        write_profile(profile, self.record)
        lightest = min(self._seen.mixed, key=lambda load: len(load.records))
        simulated = handover_seconds(self._server.play(lightest.records, profile)[0])
        # Nothing comes sooner for others that are served; what says so is noise.
        added = max(0.0, handover_seconds(lightest.records) - simulated)
        return LinkCost(link.bytes_per_s, link.latency_s + added)

    def _lengthenings(
        self, serving: ServingCost, served: FittedStepTime, slowdowns: list[float]
    ) -> list[float]:
        """Of steps with prompts and of decodes in the simulator, with these slowdowns."""
        tried = replace(serving, prefill_slowdown=slowdowns[0], decode_slowdown=slowdowns[1])
        profile = self._server.folder / "tried.json"
        write_profile(profile, self.record | {"serving": serving_fields(rounded(tried))})
        played = [self._server.play(load.records, profile)[1] for load in self._seen.mixed]
        return [_lengthening(served, played, chunked=chunked) for chunked in (True, False)]


def served_alone(engine: TimedEngine, seen: Seen) -> FittedStepTime:
    """What steps took in the loads of one kind."""
    return _fit_steps(engine, seen.loads)


def _fit_steps(engine: TimedEngine, loads: Iterable[MeasuredLoad]) -> FittedStepTime:
    return fit_steps(engine.step_time, engine.samples, list(_all_steps(loads)))


def _all_steps(loads: Iterable[MeasuredLoad]) -> Iterator[list[StepTotals]]:
    """Of each load the steps of all workers."""
    return ([each for of in load.steps.values() for each in of] for load in loads)


def write_profile(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def handover_seconds(requests: Sequence[RequestOutcome]) -> float:
    """What answers take from their first token to their last beside the time of each token, by
    least squares: the wait of the second one for its KV."""
    answers = [each for each in requests if each.finished and each.emitted_tokens > 1]
    later_tokens = [each.emitted_tokens - 1 for each in answers]
    if len(set(later_tokens)) < 2:
        return 0.0
    seconds = [(each.last_token_ns - each.first_token_ns) / 1e9 for each in answers]
    return float(np.polyfit(later_tokens, seconds, 1)[1])


def _lengthening(served: FittedStepTime, loads: Sequence[Steps], *, chunked: bool) -> float:
    """Measured seconds of such steps over those by `served`."""
    alike = [
        each for load in loads for of in load.values() for each in of if each.chunked is chunked
    ]
    listed_s = step_seconds(served, alike)
    return sum(each.duration_ns for each in alike) / 1e9 / listed_s if listed_s else 1.0


def _step_figures(served: FittedStepTime, seen: Seen) -> Iterator[dict[str, Any]]:
    """What the steps of each load took, and what the fit says of them."""
    for load in (*seen.loads, *seen.mixed):
        for worker, steps in load.steps.items():
            for chunked in (True, False):
                alike = [each for each in steps if each.chunked is chunked]
                if alike:
                    yield {
                        "mixed": load in seen.mixed,
                        "worker": worker,
                        "prefills": chunked,
                        "steps": sum(each.steps for each in alike),
                        "seconds": sum(each.duration_ns for each in alike) / 1e9,
                        "fitted_seconds": step_seconds(served, alike),
                    }

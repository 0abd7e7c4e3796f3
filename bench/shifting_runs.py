"""A load of phases, and what became of it with one split of the workers or one planner: what was
within the SLO in each phase, and every change of role."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from tandem.facts.slo import Slo
from tandem.facts.trace import TraceRow
from tandem.report.record import Decision, RequestOutcome, RunRecord
from tandem.report.statistics import distribution, tpots_ns, ttfts_ns

FLIPS = " becomes "


@dataclass(frozen=True)
class Phase:
    """A stretch of one kind of requests: so many a second, by Poisson, with lengths spread evenly
    from half to one and a half of these means."""

    rate_per_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Load:
    """The phases one after the other, each for `phase_s`, and what is promised."""

    phases: Sequence[Phase]
    phase_s: float
    slo: Slo
    seed: int

    @property
    def seconds(self) -> float:
        return len(self.phases) * self.phase_s

    def phase_of(self, at_s: float) -> int:
        """What comes after the last phase is counted with it."""
        return max(0, min(len(self.phases) - 1, int(at_s / self.phase_s)))

    def rows(self) -> list[TraceRow]:
        chance = np.random.default_rng(self.seed)
        rows = []
        for number, phase in enumerate(self.phases):
            at_s = number * self.phase_s
            while (at_s := at_s + chance.exponential(1 / phase.rate_per_s)) < (
                number + 1
            ) * self.phase_s:
                prompt, output = (
                    max(8, round(mean * chance.uniform(0.5, 1.5)))
                    for mean in (phase.prompt_tokens, phase.output_tokens)
                )
                rows.append(TraceRow(at_s, prompt, output))
        return rows


@dataclass(frozen=True)
class PlayedLoad:
    """A load as it was served: all requests, and the planner's decisions by seconds of the load."""

    label: str
    load: Load
    requests: Sequence[RequestOutcome]
    decisions: Sequence[tuple[float, str]]

    @classmethod
    def simulated(cls, label: str, load: Load, record: RunRecord) -> "PlayedLoad":
        return cls(label, load, record.requests, list(_changes(record.decisions)))

    @property
    def kept(self) -> int:
        return sum(each.keeps(self.load.slo) for each in self.requests)

    @property
    def goodput_rps(self) -> float:
        """Requests within the SLO a second of the load; late ones do not count anyhow."""
        return self.kept / self.load.seconds

    @property
    def failed(self) -> int:
        return sum(not each.finished for each in self.requests)

    def kept_by_phase(self) -> list[float]:
        """The share within the SLO of the requests that came in each phase."""
        by_phase: list[list[bool]] = [[] for _ in self.load.phases]
        for each in self.requests:
            place = self.load.phase_of(each.arrival_ns / 1e9)
            by_phase[place].append(each.keeps(self.load.slo))
        return [sum(kept) / max(1, len(kept)) for kept in by_phase]

    def flips_by_phase(self) -> list[int]:
        """Changes of role that were begun in each phase."""
        flips = [0] * len(self.load.phases)
        for at_s, text in self.decisions:
            flips[self.load.phase_of(at_s)] += text.count(FLIPS)
        return flips

    @property
    def flips(self) -> int:
        return sum(self.flips_by_phase())

    def cells(self) -> list[str]:
        """In the order of `COLUMNS`."""
        ttft, tpot = (distribution(each(self.requests)) for each in (ttfts_ns, tpots_ns))
        return [
            f"{self.goodput_rps:.2f}",
            f"{self.kept / max(1, len(self.requests)):.1%}",
            " ".join(f"{share:.0%}" for share in self.kept_by_phase()),
            "-" if ttft is None else f"{ttft.mean_ns / 1e9:.2f} s",
            "-" if tpot is None else f"{tpot.mean_ns / 1e6:.1f} ms",
            str(self.flips),
            str(self.failed),
        ]

    def show_decisions(self, console: Console) -> None:
        for at_s, text in self.decisions:
            console.print(f"{self.label}: {at_s:.0f} s: {text}", soft_wrap=True, highlight=False)


COLUMNS = ("goodput/s", "SLO kept", "by phase", "mean TTFT", "mean TPOT", "flips", "failed")


def table_of(title: str, *first: str) -> Table:
    """With `first` columns before the figures of a played load."""
    table = Table(title=title, title_justify="left")
    for column in first:
        table.add_column(column)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    return table


def _changes(decisions: Sequence[Decision]) -> Iterator[tuple[float, str]]:
    """Those of the planner that flip somebody."""
    for decision in decisions:
        if decision.kind == "planning" and FLIPS in decision.text:
            yield decision.now_ns / 1e9, decision.text

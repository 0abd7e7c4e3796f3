"""The flags of `tandem simulate`, and which runs they ask for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
import yaml

from tandem.bench.laws import read_length_pairs
from tandem.bench.traces.rates import WINDOW_S, RateDraw
from tandem.bench.traces.shape import merge, merge_note, spread, spread_note, window, window_note
from tandem.commands.workloads import read_workload
from tandem.config.cluster.file import MOST_FAULTS_PER_HOUR, Cluster, read_cluster
from tandem.config.cluster.keys import Choice
from tandem.facts.errors import InvalidConfiguration, nearest
from tandem.facts.trace import TraceRow
from tandem.observe.journal.files import is_journal
from tandem.policy.routing.policies import ROUTINGS
from tandem.report.slo import parse_slo


@dataclass(frozen=True)
class WorkloadOptions:
    """What is asked."""

    trace: Annotated[
        list[Path],
        typer.Option("--trace", help="Requests or a journal; several play at once."),
    ]
    speed: Annotated[str, typer.Option(help="Times the recorded rate; 0.5,1,2 compares loads.")] = (
        "1"
    )
    first: Annotated[
        int | None, typer.Option("--first", min=1, help="Only the first so many requests.")
    ] = None
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.001, help="Only arrivals before this.")
    ] = None
    spread: Annotated[
        bool | None,
        typer.Option(
            "--spread/--no-spread",
            help="Arrivals of a coarse clock at random places within its ticks. "
            "(default: when the trace has such a clock)",
        ),
    ] = None
    workload: Annotated[
        str | None,
        typer.Option("--workload", help="Which of a file of ServeGen rates, if it holds several."),
    ] = None
    lengths_file: Annotated[
        Path | None,
        typer.Option(
            "--lengths-file",
            help="CSV(.gz) of prompt and answer lengths, for rates that come without.",
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Of all chance: same seed, same run. (default: the cluster's)"),
    ] = None

    def speeds(self) -> list[float]:
        """Every speed once, slowest first."""
        try:
            speeds = sorted({float(part) for part in self.speed.split(",")})
        except ValueError:
            speeds = []
        if not speeds or not all(0 < speed < float("inf") for speed in speeds):
            raise InvalidConfiguration(
                f"--speed must be a number greater than 0 or a list as 0.5,1,2, got {self.speed!r}"
            )
        return speeds

    def rows(self) -> tuple[list[TraceRow], list[str]]:
        """The requests at recorded speed, and a line about everything that was done to them."""
        seed = self.seed or 0
        notes = [f"trace {' + '.join(path.name for path in self.trace)}"]
        draw = RateDraw(
            workload=self.workload or "",
            seconds=self.seconds or WINDOW_S,
            seed=seed,
            length_pairs=None
            if self.lengths_file is None
            else read_length_pairs(self.lengths_file),
        )
        traces = []
        for path in self.trace:
            recorded = read_workload(path, draw)
            # A journal has no coarse clock.
            if self.spread or (self.spread is None and not is_journal(path)):
                notes.append(spread_note(recorded))
                recorded = spread(recorded, seed)
            else:
                notes.append("arrivals as recorded")
            traces.append(recorded)
        rows = merge(traces)
        if len(traces) > 1:
            notes.append(merge_note(traces))
        kept = window(rows, first=self.first, seconds=self.seconds)
        if not kept:
            raise InvalidConfiguration("no request is left; give more --seconds")
        if len(kept) < len(rows):
            notes.append(window_note(kept, rows))
        return kept, list(dict.fromkeys(notes))


def overlong_notes(rows: Sequence[TraceRow], contexts: Sequence[int]) -> Iterator[str]:
    """How many requests do not fit into the context of a run, for each of the contexts."""
    for context_tokens in dict.fromkeys(contexts):
        count = sum(row.prompt_tokens + row.output_tokens > context_tokens for row in rows)
        if count:
            yield (
                f"{count:,} of {len(rows):,} requests want more than the {context_tokens:,} tokens "
                "of a sequence (max_model_len): longer prompts are refused, longer answers cut"
            )


@dataclass(frozen=True)
class TrialOptions:
    """What is tried."""

    routing: Annotated[
        str | None,
        typer.Option(help=f"Routing policy; a list compares, all tries {', '.join(ROUTINGS)}."),
    ] = None
    slo: Annotated[
        list[str] | None,
        typer.Option("--slo", help="The SLO, as ttft=2s,tpot=50ms. (default: the cluster's)"),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Changes the cluster, as policies.admission=prediction."),
    ] = None
    faults: Annotated[
        list[str] | None,
        typer.Option("--faults", help="Adds a fault, as 'at: 30s, crash: decode-1, restart: 20s'."),
    ] = None
    fault_rate: Annotated[
        float | None,
        typer.Option(
            "--fault-rate",
            min=0.0,
            max=MOST_FAULTS_PER_HOUR,
            help="Random faults an hour, drawn by the seed.",
        ),
    ] = None

    def variants(self, names: list[str], seed: int | None) -> dict[str, Cluster]:
        """Every cluster with every routing, under the label that tells it from the others; all with
        this seed if there is one. Raises `InvalidConfiguration`."""
        slo = parse_slo(self.slo or ())
        faults = tuple(_fault(text) for text in self.faults or ())
        variants: dict[str, Cluster] = {}
        names = list(dict.fromkeys(names))
        stems = [Path(name).stem for name in names]
        for name, stem in zip(names, stems, strict=True):
            if stems.count(stem) > 1:
                raise InvalidConfiguration(
                    f"two clusters are called {stem}; give one of the files another name"
                )
            cluster = read_cluster(name, self.settings or ())
            cluster = replace(cluster, faults=(*cluster.faults, *faults))
            if self.fault_rate is not None:
                cluster = replace(cluster, faults_per_hour=self.fault_rate)
            if seed is not None:
                cluster = replace(cluster, seed=seed)
            if not slo.empty:
                cluster = replace(cluster, slo=slo)
            for routing in self._routings(cluster.policies.routing):
                policies = replace(cluster.policies, routing=routing)
                label = f"{stem} {routing.name}" if len(names) > 1 else routing.name
                variants[label] = replace(cluster, policies=policies)
        return variants

    def _routings(self, own: Choice) -> list[Choice]:
        """The cluster's own without the flag; where the flag names it, with its parameters."""
        if self.routing is None:
            return [own]
        names = list(ROUTINGS) if self.routing == "all" else _words(self.routing)
        for name in names:
            if name not in ROUTINGS:
                raise InvalidConfiguration(f"--routing: unknown {name}{nearest(name, ROUTINGS)}")
        return [own if name == own.name else Choice(name) for name in names]


@dataclass(frozen=True)
class OutputOptions:
    """What comes out."""

    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at the same time. (default: one a core)")
    ] = None
    json: Annotated[Path | None, typer.Option("--json", help="Writes every figure.")] = None
    records: Annotated[
        Path | None, typer.Option(help="Writes every request and decision, a JSON line each.")
    ] = None
    plot: Annotated[
        Path | None, typer.Option(help="Draws the run or the comparison: .html or .png.")
    ] = None
    explain: Annotated[
        str | None, typer.Option(help="Tells the life of one request, by its id or number.")
    ] = None
    progress: Annotated[bool, typer.Option(help="Show how far the runs are.")] = True

    @property
    def keeps_decisions(self) -> bool:
        """Decisions cost memory and time, so they are kept for those who look at them."""
        return self.explain is not None or self.records is not None


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _fault(text: str) -> Mapping[str, object]:
    try:
        entry = yaml.safe_load(f"{{{text}}}")
    except yaml.YAMLError:
        entry = None
    if not isinstance(entry, dict) or None in entry.values():
        raise InvalidConfiguration(
            f"--faults must look like 'at: 30s, crash: decode-1, restart: 20s', got {text!r}"
        )
    return {str(key): value for key, value in entry.items()}

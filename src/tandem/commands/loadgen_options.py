"""The flags of `tandem bench --loadgen`, and the test that they mean."""

from dataclasses import dataclass, fields
from pathlib import Path

from tandem.bench.client import Endpoint
from tandem.bench.laws import Process
from tandem.bench.loadgen.settings import LoadgenSettings, Mode, Scenario
from tandem.bench.tasks.evaluation import Suite, choose_suites
from tandem.bench.workload import Conversation
from tandem.commands.bench_options import BenchOptions, ReportOptions
from tandem.commands.options import flag, flags
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import Slo
from tandem.report.measured import LoadPoint

# All at once means as many connections: no server's queue and no client's files are endless.
_OFFLINE_IN_FLIGHT = 64


@flags
class LoadgenOptions:
    """MLPerf LoadGen. It paces the requests and judges (docs/measuring.md)."""

    loadgen: Scenario | None = flag("LoadGen's scenario; --rate is its target.", default=None)
    loadgen_mode: Mode = flag("What LoadGen judges, or logs.", default=Mode.PERFORMANCE)
    loadgen_logs: Path | None = flag("Folder for LoadGen's log files.", default=None)
    loadgen_config: Path | None = flag("A user.conf of LoadGen's.", default=None)
    loadgen_benchmark: str | None = flag(
        "Whose lines of it hold. (default: the served model)", default=None
    )
    loadgen_tasks: str | None = flag(
        "Accuracy mode: suites of `tandem eval` as samples, as recall-1k,arithmetic.", default=None
    )
    min_duration_s: float | None = flag("LoadGen's shortest run.", default=None, min=0.0)
    max_duration_s: float | None = flag("LoadGen's longest run.", default=None, min=0.001)
    min_queries: int | None = flag("LoadGen's fewest queries.", default=None, min=1)
    max_queries: int | None = flag("LoadGen's most queries.", default=None, min=1)

    def refuse_alone(self) -> None:
        """Without --loadgen the others mean nothing."""
        for entry in fields(self):
            if getattr(self, entry.name) != entry.default:
                raise InvalidConfiguration(f"--{entry.name.replace('_', '-')} needs --loadgen")


@dataclass(frozen=True)
class LoadgenBench:
    """One benchmark with LoadGen, resolved."""

    options: BenchOptions
    loadgen: LoadgenOptions
    report: ReportOptions
    endpoint: Endpoint
    planned: list[Conversation]
    slo: Slo

    def settings(self, model: str) -> LoadgenSettings:
        """Raises `InvalidConfiguration`."""
        wishes = self.loadgen
        assert wishes.loadgen is not None
        if wishes.loadgen_logs is None:
            raise InvalidConfiguration("--loadgen needs a folder for its logs: --loadgen-logs DIR")
        if wishes.loadgen_tasks is not None and wishes.loadgen_mode is not Mode.ACCURACY:
            raise InvalidConfiguration("--loadgen-tasks needs --loadgen-mode accuracy")
        return LoadgenSettings(
            scenario=wishes.loadgen,
            mode=wishes.loadgen_mode,
            logs=wishes.loadgen_logs,
            benchmark=wishes.loadgen_benchmark or model,
            config=wishes.loadgen_config,
            target_qps=self._point().rate_rps,
            slo=self.slo,
            min_duration_s=wishes.min_duration_s,
            max_duration_s=wishes.max_duration_s,
            min_queries=wishes.min_queries,
            max_queries=wishes.max_queries,
            seed=self.options.load.seed,
        )

    def load(self) -> LoadPoint:
        """How many requests are in flight at most; LoadGen has the rate."""
        point = self._point()
        given = self.options.load.concurrency is not None
        offline = self.loadgen.loadgen is Scenario.OFFLINE
        default = _OFFLINE_IN_FLIGHT if offline else None
        return LoadPoint(point.rate_rps, point.concurrency if given else default)

    def _point(self) -> LoadPoint:
        points = self.options.points()
        if len(points) > 1 or points[0].rate_rps == float("inf"):
            raise InvalidConfiguration("--loadgen takes one finite --rate and one --concurrency")
        return points[0]

    def suites(self) -> list[Suite]:
        """The tasks that are to be the samples, if any. Raises `InvalidConfiguration`."""
        names = self.loadgen.loadgen_tasks
        suites = [] if names is None else choose_suites(names, "--loadgen-tasks")
        for suite in suites:
            if suite.votes > 1:
                raise InvalidConfiguration(
                    f"--loadgen-tasks: {suite.name} asks each task several times"
                )
        return suites

    def check(self) -> None:
        """What can be said before any server is asked. Raises `InvalidConfiguration`."""
        settings = self.settings("")
        self.load()
        self.suites()
        self._check_rhythm(settings.scenario)
        turns = [turn for conversation in self.planned for turn in conversation.turns]
        if any(len(conversation.turns) > 1 for conversation in self.planned):
            raise InvalidConfiguration("--turns: LoadGen draws its samples in any order")
        tokens = settings.mode is Mode.PERFORMANCE and settings.judges_tokens
        if tokens and any(turn.output_tokens < 2 for turn in turns):
            raise InvalidConfiguration(
                "--output-tokens: LoadGen takes the time per token of 2 tokens or more"
            )
        if settings.config is not None and not settings.config.is_file():
            raise InvalidConfiguration(f"--loadgen-config: there is no file {settings.config}")

    def _check_rhythm(self, scenario: Scenario) -> None:
        load = self.options.load
        if load.arrival is not Process.POISSON or load.burstiness != 1.0:
            raise InvalidConfiguration("--arrival and --burstiness: LoadGen has its own arrivals")
        if scenario is Scenario.SINGLE_STREAM and (load.rate or load.concurrency):
            raise InvalidConfiguration(
                "--loadgen single-stream asks one after the other: no --rate, no --concurrency"
            )

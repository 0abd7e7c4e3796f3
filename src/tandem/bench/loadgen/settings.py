"""What a run with MLPerf's LoadGen is to do, in the words of `tandem bench`; no LoadGen in it."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import Slo

NO_BOUNDS = Slo()


class Scenario(StrEnum):
    """One query after the other, queries at random instants, or all queries at once."""

    SINGLE_STREAM = "single-stream"
    SERVER = "server"
    OFFLINE = "offline"


class Mode(StrEnum):
    """Performance judges latency or throughput; accuracy asks every sample and logs its tokens."""

    PERFORMANCE = "performance"
    ACCURACY = "accuracy"


@dataclass(frozen=True)
class LoadgenSettings:
    """None keeps what the file `config` says, else LoadGen's own default. The file is read as that
    of `benchmark`; what is given here goes before it, but for `seed`: it has seeds of its own.
    Raises `InvalidConfiguration`.

    LoadGen judges either the latencies of tokens (`slo.ttft_s`, `slo.tpot_s`) or that of whole
    answers (`slo.e2e_s`).
    """

    scenario: Scenario
    mode: Mode
    logs: Path
    benchmark: str
    config: Path | None = None
    target_qps: float | None = None
    slo: Slo = NO_BOUNDS
    min_duration_s: float | None = None
    max_duration_s: float | None = None
    min_queries: int | None = None
    max_queries: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        slo, judged = self.slo, self.mode is Mode.PERFORMANCE
        if slo.e2e_s is not None and (slo.ttft_s is not None or slo.tpot_s is not None):
            raise InvalidConfiguration(
                "--slo: LoadGen bounds either ttft and tpot, or e2e, not all of them"
            )
        if self.scenario is not Scenario.SERVER or self.config is not None:
            return
        if self.target_qps is None:
            raise InvalidConfiguration("--loadgen server needs --rate, or --loadgen-config")
        if judged and slo.empty:
            raise InvalidConfiguration(
                "--loadgen server needs the latencies that it is to keep, as "
                "--slo ttft=500ms,tpot=50ms, or --loadgen-config"
            )

    @property
    def judges_tokens(self) -> bool:
        """Whether `slo` is about token latencies."""
        return self.slo.e2e_s is None

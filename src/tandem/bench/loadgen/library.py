"""MLPerf's LoadGen itself: settings in its words, and a test run with it.

The one module that imports it. LoadGen calls `issue` in the thread that runs the test, and it reads
the memory of a report while the report is being made.
"""

from array import array
from pathlib import Path

import mlperf_loadgen as loadgen

from tandem.bench.loadgen.settings import LoadgenSettings, Mode, Scenario
from tandem.bench.loadgen.system import Issue
from tandem.facts.errors import InvalidConfiguration

_SCENARIOS = {
    Scenario.SINGLE_STREAM: loadgen.TestScenario.SingleStream,
    Scenario.SERVER: loadgen.TestScenario.Server,
    Scenario.OFFLINE: loadgen.TestScenario.Offline,
}
_MODES = {
    Mode.PERFORMANCE: loadgen.TestMode.PerformanceOnly,
    Mode.ACCURACY: loadgen.TestMode.AccuracyOnly,
}
# Of `FromConfig`: a file of the user, on top of the rules that LoadGen brings.
_USER_FILE = 1
# A latency that nobody misses: a day.
_UNBOUNDED_NS = 86_400 * 10**9


class LoadgenReports:
    """`Reports` to the test that runs."""

    def first_token(self, query: int, token_ids: "array[int]") -> None:
        address, _ = token_ids.buffer_info()
        size = token_ids.itemsize * min(1, len(token_ids))
        loadgen.FirstTokenComplete([loadgen.QuerySampleResponse(query, address, size)])

    def completed(self, query: int, token_ids: "array[int]", tokens: int) -> None:
        address, length = token_ids.buffer_info()
        size = token_ids.itemsize * length
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(query, address, size, tokens)])


def make_settings(wanted: LoadgenSettings) -> "loadgen.TestSettings":
    """With a file once a process: LoadGen puts its own rules beneath it, and counts more than one
    as an error. Raises `InvalidConfiguration` for a file that it cannot read."""
    settings, scenario = loadgen.TestSettings(), _SCENARIOS[wanted.scenario]
    if wanted.config is None:
        # Each sample once before any comes again, as in MLPerf's benchmarks of language models. A
        # single stream that does so ends no sooner than its expected latency, a guess, says.
        settings.sample_concatenate_permutation = wanted.scenario is not Scenario.SINGLE_STREAM
        settings.use_token_latencies = wanted.judges_tokens
        settings.ttft_latency = settings.tpot_latency = _UNBOUNDED_NS
        settings.qsl_rng_seed = settings.sample_index_rng_seed = wanted.seed
        settings.schedule_rng_seed = wanted.seed
    elif settings.FromConfig(str(wanted.config), wanted.benchmark, scenario.name, _USER_FILE):
        raise InvalidConfiguration(
            f"--loadgen-config: {wanted.config} is no file that LoadGen can read: its lines must "
            "look like *.Server.target_qps = 2.5"
        )
    settings.scenario = scenario
    settings.mode = _MODES[wanted.mode]
    _apply(wanted, settings)
    return settings


def run_test(settings: "loadgen.TestSettings", folder: Path, samples: int, issue: Issue) -> None:
    """Returns once LoadGen has written its logs into `folder`, which is there."""
    output = loadgen.LogOutputSettings()
    output.outdir = str(folder)
    logs = loadgen.LogSettings()
    logs.log_output = output
    logs.enable_trace = False

    def issued(queries: "list[loadgen.QuerySample]") -> None:
        issue([(query.id, query.index) for query in queries])

    def nothing(*_: object) -> None:
        """Samples are made when they are asked, and nothing is held back that could be flushed."""

    system = loadgen.ConstructSUT(issued, nothing)
    library = loadgen.ConstructQSL(samples, samples, nothing, nothing)
    try:
        loadgen.StartTestWithLogSettings(system, library, settings, logs)
    finally:
        loadgen.DestroyQSL(library)
        loadgen.DestroySUT(system)


def _apply(wanted: LoadgenSettings, settings: "loadgen.TestSettings") -> None:
    """What was asked for goes before what the file says."""
    slo = wanted.slo
    values = {
        "server_target_qps": wanted.target_qps,
        "offline_expected_qps": wanted.target_qps,
        "server_target_latency_ns": _ns(slo.e2e_s),
        "ttft_latency": _ns(slo.ttft_s),
        "tpot_latency": _ns(slo.tpot_s),
        "min_duration_ms": _ms(wanted.min_duration_s),
        "max_duration_ms": _ms(wanted.max_duration_s),
        "min_query_count": wanted.min_queries,
        "max_query_count": wanted.max_queries,
    }
    for name, value in values.items():
        if value is not None:
            setattr(settings, name, value)
    if not slo.empty:
        settings.use_token_latencies = wanted.judges_tokens


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e3)

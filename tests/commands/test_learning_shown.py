"""What gateways have learnt and how they predicted, as operators and dashboards see it."""

from msgspec.structs import replace
from rich.console import Console

from tandem.commands.cluster_view import print_status
from tandem.facts.calibration import Calibration
from tandem.facts.correction import Correction
from tandem.facts.slo import Slo
from tandem.messages.gateway import ClusterStatus
from tandem.observe.cluster_metrics import GatewayMetrics
from tests.live.statuses import worker_status
from tests.observe.metrics_text import text_of


def status() -> ClusterStatus:
    """One of four requests missed an SLO that it was predicted to keep; a worker is slow."""
    calibration = Calibration()
    for ttft_s in (0.05, 0.06, 0.07, 0.5):
        calibration.count(Slo(ttft_s=0.1), (0.05, 0.01), ttft_s, 0.01)
    slow = replace(
        worker_status("decode-0"), correction=Correction(decode=3.9, first_token_s=0.012)
    )
    return ClusterStatus(
        gateway="gateway-0",
        up_s=60.0,
        workers=(slow, worker_status("decode-1")),
        waiting_requests=0,
        running_requests=0,
        finished_requests=4,
        takeovers=0,
        lost=(),
        calibration=calibration,
        calibration_total=calibration,
    )


def test_status_says_what_was_learnt_and_how_it_predicted():
    console = Console(width=160)
    with console.capture() as captured:
        print_status(console, "http://here", [status(), status()])
    shown = captured.get()
    assert "decode-0: decode steps 3.9x slower than listed, first token 12 ms later" in shown
    assert "decode-1:" not in shown
    # Of both gateways together.
    assert "of 8 requests predicted to keep their SLO 6 did (75.0%)" in shown


def test_metrics_count_predictions_and_show_corrections():
    text = text_of(GatewayMetrics("m").families(status()))
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if "{" in line)

    def value(name: str, **labels: str) -> float:
        found = [
            float(figure)
            for line, figure in lines.items()
            if line.startswith(f"tandem:{name}{{")
            and all(f'{key}="{each}"' in line for key, each in labels.items())
        ]
        assert len(found) == 1
        return found[0]

    counted = {"bound": "both", "predicted": "kept"}
    assert value("slo_predictions_total", outcome="kept", **counted) == 3
    assert value("slo_predictions_total", outcome="missed", **counted) == 1
    assert value("worker_cost_correction", worker="decode-0", of="decode") == 3.9
    assert value("worker_cost_correction", worker="decode-1", of="decode") == 1
    assert value("worker_first_token_seconds", worker="decode-0") == 0.012

"""What slower tiers and a planner did, as Prometheus reads it."""

from msgspec.structs import replace

from tandem.facts.adapter import AdapterFigures, AdapterMemory
from tandem.facts.fleet import PlanningMode, Tier
from tandem.facts.kv import TierFigures
from tandem.facts.request import FinishReason, Request
from tandem.facts.step_totals import StepTotals
from tandem.messages.gateway import ClusterStatus, PoolNodeStatus, WorkerStatus
from tandem.messages.planning import HeldWorker, PlanningStatus
from tandem.observe.cluster_metrics import GatewayMetrics
from tests.live.statuses import worker_status
from tests.observe.metrics_text import text_of

KINDS = ("decode", "prefill")


def status(*workers: WorkerStatus, **more) -> ClusterStatus:
    return replace(ClusterStatus("g", 1.0, workers, 0, 0, 0, 0, ()), **more)


def exposed(status: ClusterStatus) -> list[str]:
    return text_of(GatewayMetrics("m").families(status)).splitlines()


def test_every_tier_of_every_process_has_its_figures():
    disk = TierFigures(Tier.DISK, False, 7, 20, 9, 8, 3, 2, 1, 2e-6, 1e-6, "it loses")
    worker = replace(worker_status("w-0"), tiers=(disk,), fetches=4, fetched_tokens=64)
    of_tenants = (("acme", 4), ("bolt", 0))
    memory = TierFigures(Tier.HOST, True, 11, 12, tenant_blocks=of_tenants)
    node = PoolNodeStatus("pool-0", "i", "10.0.0.1:7", 0.1, 12, 256, (memory,))
    told = exposed(status(worker, takeovers=1, recomputed_tokens=40, pool_nodes=(node,)))
    of_disk = '{model_name="m",owner="w-0",tier="disk"}'
    for name, value in (
        ("blocks", 7),
        ("capacity_blocks", 20),
        ("on", 0),
        ("stored_blocks_total", 9),
        ("fetched_blocks_total", 8),
        ("missed_blocks_total", 3),
        ("spoilt_blocks_total", 2),
        ("failures_total", 1),
        ("fetch_seconds_per_token", 2e-6),
    ):
        assert f"tandem:kv_tier_{name}{of_disk} {float(value)}" in told
    assert 'tandem:kv_tier_blocks{model_name="m",owner="pool-0",tier="host"} 11.0' in told
    for tenant, blocks in of_tenants:
        of_tenant = f'{{model_name="m",owner="pool-0",tenant="{tenant}",tier="host"}}'
        assert f"tandem:kv_tier_tenant_blocks{of_tenant} {float(blocks)}" in told
    assert 'tandem:request_recomputed_tokens_total{model_name="m"} 40.0' in told
    assert any(line.startswith("tandem:kv_fetch_tokens_total") and "64.0" in line for line in told)


def test_steps_are_told_apart_by_what_they_compute():
    steps = (
        StepTotals(False, 3, 10, 20_000_000, 0, 0, 0, 40, 900, 40),
        StepTotals(True, 5, 2, 30_000_000, 2, 50, 700, 3, 80, 4),
        StepTotals(True, 7, 1, 50_000_000, 1, 100, 5000, 0, 0, 1),
    )
    worker = replace(worker_status("w-0"), steps=steps)
    lines = exposed(status(worker))
    labels = {kind: f'{{kind="{kind}",model_name="m",pool="w",worker="w-0"}}' for kind in KINDS}
    for name, decode, prefill in (
        ("steps", 10.0, 3.0),
        ("step_seconds", 0.02, 0.08),
        ("step_tokens", 40.0, 153.0),
    ):
        assert f"tandem:worker_{name}_total{labels['decode']} {decode}" in lines
        assert f"tandem:worker_{name}_total{labels['prefill']} {prefill}" in lines


def test_a_cluster_without_tiers_has_no_such_metrics():
    told = exposed(status(worker_status("w-0")))
    assert not [line for line in told if "kv_tier_" in line]


def test_what_was_planned_is_counted():
    planning = PlanningStatus(
        "tandem",
        PlanningMode.AUTOMATIC,
        held=(HeldWorker("d-0", "drained"),),
        starts=4,
        stops=3,
        flips=2,
        migrations=1,
        failed_starts=5,
    )
    told = exposed(status(planning=planning))
    for action, count in (("start", 4), ("stop", 3), ("flip", 2), ("migrate", 1)):
        name = "tandem:planned_actions_total"
        assert f'{name}{{action="{action}",model_name="m"}} {float(count)}' in told
    assert 'tandem:planned_start_failures_total{model_name="m"} 5.0' in told
    assert 'tandem:planner_held_workers{model_name="m"} 1.0' in told


def test_a_gateway_that_does_not_plan_has_no_such_metrics():
    assert not [line for line in exposed(status()) if "plan" in line]


def test_adapters_are_named_and_their_memory_is_counted():
    a, b, c = (letter * 32 for letter in "abc")
    memory = AdapterMemory(2, 5000, 9000, loads=7, evictions=5)
    serving = replace(worker_status("w-0"), adapters=AdapterFigures((a, b), (c,), 2, memory))
    metrics = GatewayMetrics("m", adapter_names=lambda: {a: "sql", b: "chat"})
    told = text_of(metrics.families(status(serving, worker_status("w-1")))).splitlines()
    # The third was unloaded while a request waits for it.
    labels = 'running_lora_adapters="chat,sql",waiting_lora_adapters="cccccccc",worker="w-0"'
    of_worker = 'max_lora="2",model_name="m",pool="w"'
    assert f"tandem:lora_requests_info{{{of_worker},{labels}}} 1.0" in told
    for name, value in (
        ("adapters_loaded", 2),
        ("memory_bytes", 5000),
        ("memory_limit_bytes", 9000),
        ("loads_total", 7),
        ("evictions_total", 5),
    ):
        series = f'tandem:lora_{name}{{model_name="m",pool="w",worker="w-0"}}'
        assert f"{series} {float(value)}" in told
    assert not [line for line in told if "lora" in line and "w-1" in line]


def test_without_adapters_there_are_no_such_metrics():
    assert not [line for line in exposed(status(worker_status("w-0"))) if "lora" in line]


def test_what_failed_is_no_abort():
    metrics = GatewayMetrics("m")
    for name in "abc":
        metrics.requests.arrived(Request(name, (1, 2)), 0)
    metrics.requests.failed("a", 5)
    metrics.requests.ended("b", FinishReason.ABORT, 5)
    told = text_of(metrics.families(status())).splitlines()
    for reason, count in (("error", 1), ("abort", 1), ("stop", 0)):
        series = f'tandem:request_success_total{{finished_reason="{reason}",model_name="m"}}'
        assert f"{series} {float(count)}" in told
    assert metrics.requests.open_requests == 1

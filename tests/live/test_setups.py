"""From a cluster file, or the flags of `tandem serve`, to the set-up of each process."""

import io
import stat
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from msgspec import structs
from rich.console import Console

from tandem.commands.cluster_view import print_status, together
from tandem.commands.serve import Caches, Shape, cluster_file
from tandem.commands.terminal import bytes_text, seconds_text
from tandem.config.cluster.file import worker_names
from tandem.config.cluster.live import LiveFile, checked, worker_options
from tandem.config.cluster.requests import JournalConfig
from tandem.config.cluster.tiers import process_names
from tandem.config.cluster.tree import parse
from tandem.config.environment import MachineFacts
from tandem.config.hardware.pools import capacity_of
from tandem.config.options import ServeOptions
from tandem.config.policies import planning_config, router_config
from tandem.config.processes import GatewaySetup, WorkerSetup, read_setup
from tandem.facts.blocks import CacheRoot
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import PlanningMode, Role, Tier
from tandem.facts.kv import KvExport, KvGeometry, TierFigures
from tandem.live.launching.state_directory import StateDirectory
from tandem.live.processes.setups import Setups, program_of, write_cluster
from tandem.messages.cluster import PROTOCOL, Register
from tandem.messages.gateway import BreakerStatus, ClusterStatus, PoolNodeStatus
from tandem.messages.planning import (
    ActionKind,
    HeldWorker,
    PlanDecision,
    PlannedAction,
    PlannedStart,
    PlanningStatus,
)
from tests.live.statuses import worker_status

TEXT = """\
model: tandem-mini
block_size: 16
gateways: 2
serve: {port: 0, max-num-seqs: 8}
transport: {connectors: [tcp], wire_dtype: bfloat16}
pools:
  - {name: p, role: prefill, device: cpu, tensor_parallel: 2}
  - {name: d, role: decode, device: cpu, count: 2, max_count: 3, serve: {threads: 3}}
"""


def read(text=TEXT) -> LiveFile:
    return checked(parse(text, "c.yaml"), Path())


def setups(text=TEXT, cores=8, free_bytes=8 << 30) -> Setups:
    made = Setups(read(text).cluster)
    made.share.host = MachineFacts(cores, free_bytes, api_keys=("key-of-the-environment",))
    return made


def test_workers_share_the_machine():
    made = setups()
    prefill, decode = made.cluster.pools
    setup = made.worker(prefill, "p-0", ("tcp://127.0.0.1:1",))
    # Eight cores for four ranks; four tenths of the memory for three workers.
    assert setup.options.threads == 2
    assert 0 < int(setup.options.kv_cache_memory) < 0.4 * (8 << 30) / 3
    assert setup.pool_config == prefill
    assert setup.cluster.transport == made.cluster.transport
    assert setup.cluster.transport.wire_dtype == "bfloat16"
    assert (setup.model, setup.role, setup.keys.gateway_secret) == (None, "prefill", "")
    assert setup.cluster.health.live_report_interval_s == 0.1
    assert made.worker(decode, "d-0", ()).options.threads == 3
    assert setups(cores=1).worker(prefill, "p-0", ()).options.threads == 1


def test_no_memory_is_reported_before_anything_starts():
    made = setups(free_bytes=0)
    with pytest.raises(InvalidConfiguration, match="the model does not fit into memory"):
        made.worker(made.cluster.pools[0], "p-0", ())


def test_a_gpu_that_is_not_here_is_refused():
    with pytest.raises(InvalidConfiguration, match="device h200 is a GPU, and this machine has"):
        Setups(read(TEXT.replace("device: cpu, count: 2", "device: h200, count: 2")).cluster)


def test_set_ups_are_read_as_they_were_written_and_by_nobody_else(tmp_path):
    made = setups()
    directory = StateDirectory(tmp_path / "state")
    directory.claim()
    write_cluster(read(), made, directory)
    gateway = made.gateway(1, directory.path, "tcp://127.0.0.1:0")
    assert gateway.options.api_key == ("key-of-the-environment",)
    worker = made.worker(made.cluster.pools[1], "d-0", ("tcp://127.0.0.1:1",))
    programs = [program_of(gateway, directory), program_of(worker, directory, {})]
    assert [program.command[3] for program in programs] == ["gateway-process", "worker-process"]
    assert read_setup(GatewaySetup, directory.path / "gateway-1.setup.json") == gateway
    assert read_setup(WorkerSetup, directory.path / "d-0.setup.json") == worker
    for file in directory.path.iterdir():
        assert not stat.S_IMODE(file.stat().st_mode) & 0o077, file
    assert gateway.keys.gateway_secret not in repr(programs)


def register(pool: str, block_size=32, dtype="float32") -> Register:
    export = KvExport("m", "main", KvGeometry(4, 2, 32, block_size, dtype), 77, ())
    root = CacheRoot("m", "main", b"")
    return Register(PROTOCOL, "1", "w", "i", pool, Role.BOTH, True, root, export, 5, 100)


def test_a_worker_is_priced_by_its_pool_and_counted_as_it_registers():
    made = setups()
    cluster = replace(made.cluster, model=str(made.checkpoint))
    price = capacity_of(cluster)
    capacity = price(register("d"))
    assert (capacity.block_size, capacity.block_count, capacity.max_sequences) == (32, 77, 5)
    half = price(register("d", dtype="bfloat16"))
    assert capacity.cost.kv_bytes_per_token == 2 * half.cost.kv_bytes_per_token
    # Two ranks on one computer are no faster than one; who is of no pool counts as of the first.
    assert price(register("p")).cost.prefill_seconds(1000) == capacity.cost.prefill_seconds(1000)
    assert price(register("nobody's")).cost == price(register("p")).cost
    capacities = {}
    config = router_config(cluster, register("d").root, 16, capacities)
    assert (config.capacities, config.block_size) == (capacities, 16)


def test_names_of_workers_are_those_of_the_simulator():
    assert worker_names(read().cluster.pools[1]) == ["d-0", "d-1", "d-2"]


def test_the_flags_of_serve_are_a_cluster_file():
    options = ServeOptions(port=9000, max_num_seqs=7, block_size=32, api_key=("k",), device="cpu")
    shape = Shape(prefill=1, decode=2, tensor_parallel=2, connectors=["tcp"])
    cluster = cluster_file(None, options, shape).cluster
    assert [(pool.name, pool.role, pool.count) for pool in cluster.pools] == [
        ("prefill", Role.PREFILL, 1),
        ("decode", Role.DECODE, 2),
    ]
    assert {pool.tensor_parallel for pool in cluster.pools} == {2}
    assert (cluster.serve["port"], cluster.serve["api-key"]) == (9000, ("k",))
    assert (cluster.block_size, cluster.transport.connectors) == (32, ("tcp",))
    # Workers have the very options that one process would have.
    options_of_worker = worker_options(cluster, cluster.pools[0])
    assert msgspec.structs.replace(options_of_worker, port=9000, api_key=("k",)) == options


def test_workers_that_do_both_move_no_kv_without_need():
    cluster = cluster_file(None, ServeOptions(device="cpu"), Shape(workers=3)).cluster
    assert [(pool.role, pool.count) for pool in cluster.pools] == [(Role.BOTH, 3)]
    assert cluster.policies.dispatch.name == "local"
    assert not Shape().wanted
    assert Shape(tensor_parallel=2).wanted
    split = cluster_file(None, ServeOptions(device="cpu"), Shape(tensor_parallel=2)).cluster
    assert [(pool.count, pool.tensor_parallel) for pool in split.pools] == [(1, 2)]


def test_a_journal_takes_a_gateway(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shape = Shape(journal=Path("turns"))
    assert shape.wanted
    cluster = cluster_file(None, ServeOptions(device="cpu"), shape).cluster
    assert cluster.journal == JournalConfig(str(tmp_path / "turns"))
    assert cluster_file(None, ServeOptions(device="cpu"), Shape(workers=1)).cluster.journal is None
    setup = Setups(cluster).gateway(0, tmp_path, "tcp://127.0.0.1:0")
    assert setup.cluster.journal == JournalConfig(str(tmp_path / "turns"))


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        (Shape(prefill=2), "--prefill alone cannot serve; give --decode"),
        (Shape(decode=1), "--decode alone cannot serve; give --prefill"),
        (Shape(caches=Caches(disk_cache_dir=Path("/kv"))), "--disk-cache-dir needs a size, too"),
        (Shape(caches=Caches(host_cache="much")), "^--host-cache: expected a size"),
        (
            Shape(tensor_parallel=2, caches=Caches(host_cache="1MiB")),
            "tiers are for workers of one rank in this version",
        ),
        (Shape(workers=1, connectors=["pigeon"]), "^tandem serve: unknown connector pigeon"),
    ],
)
def test_flags_that_cannot_serve_are_refused(shape, problem):
    with pytest.raises(InvalidConfiguration, match=problem):
        cluster_file(None, ServeOptions(device="cpu"), shape)


def test_figures_of_several_gateways_are_added_up():
    one = ClusterStatus("g-0", 50.0, (worker_status("w-0", moved_bytes=1000),), 1, 2, 3, 4, ())
    lost = (("w-0", "silent"), ("w-1", "the connection broke"))
    over_tcp = structs.replace(worker_status("w-0", moved_bytes=24), connectors=("tcp", "shm"))
    two = ClusterStatus("g-1", 7300.0, (over_tcp,), 0, 0, 1, 0, lost)
    (worker,) = together([one, two])
    assert (worker.moved_bytes, worker.prompts, worker.load.free_blocks) == (1024, 10, 60)
    assert worker.connectors == ("shm", "tcp")
    console = Console(record=True, width=140, file=io.StringIO())
    print_status(console, "http://here", [one, two])
    shown = console.export_text()
    assert "1.0 KiB in 6" in shown
    assert "g-1: up 2 h" in shown
    assert "lost: the connection broke" in shown
    assert "died and came back: w-0 (silent)" in shown


def test_room_beyond_the_device_is_a_tier_of_the_cluster_file(tmp_path):
    caches = Caches("8MiB", "1GiB", tmp_path, "64MiB")
    file = cluster_file(None, ServeOptions(device="cpu"), Shape(caches=caches))
    tiers = file.cluster.tiers
    assert [(pool.role, pool.count) for pool in file.cluster.pools] == [(Role.BOTH, 1)]
    assert tiers.host is not None
    assert tiers.host.capacity_bytes == 8 << 20
    assert tiers.disk is not None
    assert (tiers.disk.capacity_bytes, tiers.disk.path) == (1 << 30, str(tmp_path))
    assert tiers.remote is not None
    assert (tiers.remote.capacity_bytes, tiers.remote.nodes) == (64 << 20, 1)
    assert Shape(caches=Caches(host_cache="1MiB")).wanted


def test_tiers_are_shown_with_what_they_did_and_why_they_are_off():
    host = TierFigures(Tier.HOST, True, 1500, 2000, 9, 70, 3, 2, fetch_s_per_token=2.5e-6)
    disk = TierFigures(Tier.DISK, False, 0, 100, failures=4, reason="fetching takes 9 us a token")
    memory = TierFigures(Tier.HOST, True, 11, 12)
    node = PoolNodeStatus("pool-0", "i", "10.0.0.1:7", 0.1, 12, 256, (memory,))
    worker = structs.replace(worker_status("w-0"), tiers=(host, disk))
    lost = (("pool-0", "silent"), ("pool-1", "the connection broke"))
    status = ClusterStatus("g-0", 5.0, (worker,), 0, 0, 0, 2, lost, 40, (node,))
    console = Console(record=True, width=140, file=io.StringIO())
    print_status(console, "http://here", [status])
    shown = console.export_text()
    assert "2 taken over from another worker (40 tokens computed again)" in shown
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    assert "w-0 memory on 1,500 2,000 9 70 3 2 2.5" in rows
    assert any(row.startswith("w-0 disk off: fetching takes 9 us a token (4 fail") for row in rows)
    assert "pool-0 memory on 11 12 0 0 0 0 -" in rows
    assert "lost: the connection broke" in shown
    assert "died and came back: pool-0 (silent)" in shown
    assert status.members == {"w-0", "pool-0"}


PLANNED = TEXT + "policies: {planning: tandem}\nplanning: {mode: advisory, hold: 5m}\n"


def test_workers_that_a_planner_may_start_have_their_share_from_the_start():
    made, whole = setups(PLANNED), setups(TEXT.replace("count: 2, max_count: 3", "count: 3"))
    for index in range(2):
        planned, counted = (
            each.worker(each.cluster.pools[index], "w", ()).options for each in (made, whole)
        )
        assert (planned.threads, planned.kv_cache_memory) == (
            counted.threads,
            counted.kv_cache_memory,
        )
    assert list(process_names(made.cluster)) == ["p-0", "d-0", "d-1", "d-2"]
    assert list(process_names(setups().cluster)) == ["p-0", "d-0", "d-1"]


def test_one_gateway_of_a_planned_cluster_plans():
    made = setups(PLANNED)
    plans = [made.gateway(index, Path("/state"), "tcp://h:1").plans for index in range(2)]
    assert plans == [True, False]
    assert not setups().gateway(0, Path("/state"), "tcp://h:1").plans
    # Who has keys from elsewhere has nobody who would start workers.
    alone = Setups(made.cluster, made.keys, alone=True)
    assert not alone.gateway(0, Path("/state"), "tcp://h:1").plans


def test_a_planner_is_made_from_the_file():
    config = planning_config(read(PLANNED).cluster)
    assert config is not None
    assert (config.mode, config.hold_s, config.gateways) == (PlanningMode.ADVISORY, 300.0, 2)
    assert [(pool.role, pool.workers, pool.count, pool.min_count) for pool in config.pools] == [
        (Role.PREFILL, ("p-0",), 1, 1),
        (Role.DECODE, ("d-0", "d-1", "d-2"), 2, 1),
    ]
    assert planning_config(read().cluster) is None
    both = "pools: [{name: w, device: cpu}]\npolicies: {planning: {name: static, decode: 1}}\n"
    assert planning_config(read(f"model: tandem-mini\n{both}").cluster) is None


def test_what_the_planner_did_is_shown():
    action = PlannedAction(ActionKind.START, "d-2", Role.DECODE)
    decision = PlanDecision(7, 5, PlanningMode.ADVISORY, 1, 3, "busy", (), (action,))
    planning = PlanningStatus(
        "tandem",
        PlanningMode.ADVISORY,
        starting=(PlannedStart("d-1", Role.DECODE),),
        draining=("p-1",),
        held=(HeldWorker("d-0", "drained"), HeldWorker("p-0", "flipped to decode", 240.0)),
        decisions=(decision,),
        decided_ago_s=12.0,
        last_reason="idle",
        starts=2,
        failed_starts=1,
    )
    status = ClusterStatus("g-0", 5.0, (worker_status("d-0"),), 0, 0, 0, 0, (), planning=planning)
    console = Console(record=True, width=140, file=io.StringIO())
    print_status(console, "http://here", [status])
    shown = [line.rstrip() for line in console.export_text().splitlines()]
    first = shown.index("planner tandem (advisory): 2 started, 1 could not be started")
    assert shown[first + 1 : first + 6] == [
        "  12 s ago: busy: would do: d-2 starts as decode",
        "  now: idle",
        "  starting: d-1 as decode",
        "  draining: p-1",
        "  left alone, changed by hand: d-0 (drained, until it is undrained), p-0 (flipped to "
        "decode, for 4 min)",
    ]


def test_amounts_read_well():
    assert [bytes_text(count) for count in (0, 1023, 1024, 5 << 20, 3 << 40)] == [
        "0 B", "1023 B", "1.0 KiB", "5.0 MiB", "3.0 TiB",
    ]  # fmt: skip
    assert [seconds_text(seconds) for seconds in (3, 119, 120, 7200)] == [
        "3 s", "119 s", "2 min", "2 h",
    ]  # fmt: skip


def test_a_breaker_that_holds_something_back_is_shown_with_its_cause():
    cause = (
        "the p99 TTFT of class premium was 1.34 times its SLO, although it was predicted to hold"
    )
    breakers = (
        BreakerStatus("premium", "closed", 1.0, 2, ""),
        BreakerStatus("free", "open", 0.75, 1, cause),
    )
    status = ClusterStatus("g-0", 5.0, (worker_status("d-0"),), 0, 0, 0, 0, (), breakers=breakers)
    console = Console(record=True, width=240, file=io.StringIO())
    print_status(console, "http://here", [status])
    shown = [line.rstrip() for line in console.export_text().splitlines()]
    assert [line for line in shown if "breaker" in line] == [
        "g-0: the breaker of class free is open: 75% of what it promises is given out, because "
        + cause
    ]

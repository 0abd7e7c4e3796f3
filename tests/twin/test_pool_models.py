"""Pools with another model in the simulator: a flood that one model cannot serve spills over to a
smaller one, and what a small worker began no other model ends."""

from pathlib import Path

from tandem.commands.scenario import scenario_of
from tandem.config.cluster.file import cluster_of
from tandem.config.cluster.tree import parse
from tandem.facts.trace import TraceRow
from tandem.report.record import Ending
from tandem.twin.simulation import Simulation
from tests.twin.small_scenarios import played

TEXT = """
model: llama-3.1-70b
pools:
  - {name: main, device: h100, tensor_parallel: 4, max_num_seqs: 8}
  - {name: small, device: h100, count: 2, model: llama-3.1-8b, max_num_seqs: 32}
policies: {admission: prediction, routing: cost}
tiers: {host: {capacity: 8 GB}, remote: {capacity: 64 GB}}
"""
CLASSES = """
classes:
  - {name: usual, default: true DEGRADE}
  - {name: economy, pools: [small]}
"""
CRASHES = """
faults:
  - {at: 2s, crash: small-0, restart: 1s}
  - {at: 5s, crash: small-1, restart: 1s}
"""


def run(degrade: str = ", degrade: {service_class: economy}", faults: str = "") -> Simulation:
    """Twice as many as the larger model has slots for; their sessions come back."""
    text = TEXT + CLASSES.replace(" DEGRADE", degrade) + faults
    scenario = scenario_of(cluster_of(parse(text, "c.yaml"), Path()))
    rows = [
        TraceRow(number / 8, 200 + 10 * (number % 7), 120, session=f"s{number % 12}")
        for number in range(64)
    ]
    return played(scenario, rows)


def by_worker(simulation: Simulation) -> dict[str, int]:
    """Finished requests by the pool that answered them; of those that were refused by none."""
    counts: dict[str, int] = {}
    for each in simulation.cluster.run.requests:
        finished = each.ending is Ending.FINISHED
        pool = each.decode_worker.partition("-")[0] if finished else ""
        counts[pool] = counts.get(pool, 0) + 1
    return counts


def test_what_the_larger_model_has_no_room_for_the_smaller_one_answers():
    refused = by_worker(run(degrade=""))
    assert refused[""] > 10
    assert "small" not in refused
    answered = by_worker(run())
    assert answered["small"] >= refused[""]
    assert "" not in answered


def test_the_smaller_model_is_priced_by_its_own_shape():
    capacities = run().cluster.gateway.machine.router.admission.fleet.workers
    main, small = (capacities[name].capacity for name in ("main-0", "small-0"))
    assert small.cost.kv_bytes_per_token < 0.5 * main.cost.kv_bytes_per_token
    assert (main.model, small.model) == ("", "llama-3.1-8b")


def test_answers_of_the_smaller_model_survive_its_workers_and_stay_there():
    simulation = run(faults=CRASHES)
    took_over = [each for each in simulation.cluster.run.requests if each.resumptions]
    assert took_over
    assert {each.decode_worker.partition("-")[0] for each in took_over} == {"small"}
    assert all(each.ending is Ending.FINISHED for each in took_over)

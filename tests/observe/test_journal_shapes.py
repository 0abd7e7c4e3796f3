"""A planner that asked a simulator decides the same again from its journal, in which the answers
stand; nothing is simulated for that."""

from dataclasses import replace

from tandem.cluster.gateway.configuration import GatewayConfig
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.cluster.gateway.planner import PlanningConfig
from tandem.facts.fleet import Role
from tandem.facts.request import Request
from tandem.facts.shapes import ShapeFigures
from tandem.facts.slo import Slo
from tandem.messages.gateway import (
    MessageFromWorker,
    PlanDecided,
    ShapesSimulated,
    SimulateShapes,
    TimePassed,
)
from tandem.messages.router import RequestSubmitted
from tandem.observe.journal.pseudonyms import SessionNames, TenantNames
from tandem.observe.journal.recorder import Recorder
from tandem.observe.journal.records import decode_record
from tandem.observe.journal.replay import ReplayedHashes, compare
from tandem.policy.planning.simulated import Simulation
from tandem.policy.planning.tandem import Tandem
from tests.cluster.cluster_parts import GatewayUnderTest, register
from tests.cluster.scaled_cluster import DECODE, PATIENT, PREFILL, SECOND


def figures(kept: float) -> ShapeFigures:
    return ShapeFigures(100, kept, 1.0, 0.1, 0.2, 0.01, 0.02, 3)


def config() -> GatewayConfig:
    policy = Tandem(simulate=True, simulation=Simulation(requests=64))
    planning = PlanningConfig(
        "tandem", policy, (PREFILL, DECODE), Slo(ttft_s=1.0), remembers_s=600.0
    )
    return GatewayUnderTest(planning=planning, terms=PATIENT).machine.config


def test_answers_of_the_simulator_are_replayed():
    played = config()
    recorder = Recorder(played.router.block_size, TenantNames(), SessionNames(b"key"))
    machine = GatewayMachine(replace(played, router=replace(played.router, hashes=recorder.hashes)))
    turns, asked, decided = [], [], []

    def happen(at_ns: int, *events) -> None:
        effects = machine.handle_together(events, at_ns)
        turns.append(recorder.turn(at_ns, events, effects))
        asked.extend(each for each in effects if isinstance(each, SimulateShapes))
        decided.extend(each.decision for each in effects if isinstance(each, PlanDecided))
        machine.audit()

    for name, role in (("p-0", Role.PREFILL), ("d-0", Role.DECODE), ("d-1", Role.DECODE)):
        happen(1, MessageFromWorker(f"{name}/1", register(name, role)))
    for serial in range(1, 100):
        request = Request(f"r{serial}", tuple(range(serial % 3, serial % 3 + 9)))
        happen(serial * SECOND // 2, RequestSubmitted(request, 10.0))
    (question,) = asked
    # Prompts of nine tokens are two full blocks of four.
    assert {len(each.digests) for each in question.demand} == {32}
    best = max(
        range(len(question.shapes)), key=lambda at: question.shapes[at].workers(Role.PREFILL)
    )
    answer = ShapesSimulated(
        question.question_id,
        tuple(figures(0.97 if at == best else 0.5) for at in range(len(question.shapes))),
        cpu_s=1.5,
    )
    happen(50 * SECOND, answer)
    happen(60 * SECOND, TimePassed())
    assert "would have kept 97%" in decided[-1].reason
    assert decided[-1].actions
    assert (
        dict(decided[-1].figures)[
            f"simulated_kept_{question.shapes[best].workers(Role.PREFILL)}"
            f"p{question.shapes[best].workers(Role.DECODE)}d"
        ]
        == 0.97
    )
    status = machine.status(60 * SECOND).planning.simulation
    assert (status.answers, status.failures, status.cpu_s) == (1, 0, 1.5)
    again, hashes = config(), ReplayedHashes(4)
    fresh = GatewayMachine(replace(again, router=replace(again.router, hashes=hashes)))
    done = compare([decode_record(turn) for turn in turns], fresh, hashes, None)
    assert done.difference is None
    assert done.turns == len(turns)

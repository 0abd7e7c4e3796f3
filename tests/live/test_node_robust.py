"""A worker process whose gateway talks nonsense lives, keeps its books, and ends as it should."""

import signal
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.facts.fleet import Role
from tandem.facts.kv import MoveKv
from tandem.facts.request import FinishReason, Request
from tandem.facts.sampling import SamplingParameters
from tandem.messages.checks import BadMessage
from tandem.messages.cluster import (
    Drain,
    LeasesRenewed,
    RegisterAgain,
    Registered,
    RegistrationRefused,
    RoleStateReported,
    StopMove,
    Undrain,
)
from tandem.messages.codec import TO_WORKER
from tandem.messages.router import TokensReported
from tandem.messages.worker import (
    ImportDone,
    ImportsArrived,
    KvTransfersRequested,
    PrefillsArrived,
    RequestsAborted,
    RequestsArrived,
    TransferPinsReleased,
)
from tests.live.ends import GATEWAY_PAIR, PATIENCE_S, WORKER_PAIR
from tests.live.gateway_side import Workers
from tests.live.raw_gateway import RawGateway
from tests.messages.instances import TYPES, of_type

TERMS = Registered("hostile", 20_000_000, 1 << 39, 1 << 39)
# A gateway may well send these home, and decide how long it may be silent.
OBEYED = (Drain, RegisterAgain, RegistrationRefused, Registered)
HARMLESS = [kind for kind in TYPES["to_worker"] if kind not in OBEYED]
NAMES = ["a", "b", "c", "d"]


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    gateway = RawGateway(GATEWAY_PAIR, WORKER_PAIR.public)
    workers = Workers(tmp_path_factory.mktemp("robust"), gateway.endpoint)
    process = workers.start("w", "both")
    gateway.register(TERMS)
    yield gateway, process, workers
    workers.kill_all()
    gateway.close()


def at_rest(gateway: RawGateway) -> None:
    """Everything that was asked for can be called off, and then nothing is left."""
    gateway.send(TO_WORKER.encode(RegisterAgain()))
    gateway.register(TERMS)
    while True:
        audited = gateway.audit()
        assert audited.problem == ""
        if not (audited.running or audited.importing or audited.moves):
            break
    held = (audited.owned_blocks, audited.waiting, audited.held, audited.leases)
    assert held == (0, 0, 0, 0)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_messages_without_sense_change_nothing(worker, data):
    gateway, process, _ = worker
    for kind in data.draw(st.lists(st.sampled_from(HARMLESS), max_size=6)):
        gateway.send(TO_WORKER.encode(data.draw(of_type(kind))))
    assert gateway.audit().problem == ""
    assert process.poll() is None


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_bytes_without_sense_are_passed_over(worker, data):
    gateway, process, _ = worker
    frames = data.draw(st.lists(st.binary(max_size=200), min_size=1, max_size=3))
    whole = TO_WORKER.encode(data.draw(of_type(data.draw(st.sampled_from(HARMLESS)))))
    cut = data.draw(st.integers(0, len(whole)))
    flipped = bytearray(whole)
    flipped[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for corrupt in (frames, [whole[:cut]], [bytes(flipped)]):
        if not obeyed(b"".join(corrupt)):
            gateway.send(*corrupt)
    assert gateway.audit().problem == ""
    assert process.poll() is None


def obeyed(data: bytes) -> bool:
    try:
        return isinstance(TO_WORKER.decode(data), OBEYED)
    except BadMessage:
        return False


def an_order(chance: Random):
    """Something that a gateway might send to a worker, of requests that may or may not be there."""
    name, other = chance.choice(NAMES), chance.choice(NAMES)
    sampling = SamplingParameters(max_tokens=chance.randint(1, 40), temperature=0.0)
    request = Request(name, tuple(range(5, 5 + chance.randint(1, 120))), sampling)
    tokens = chance.choice([0, 3, 16, 64, 500])
    few = tuple(chance.randrange(40) for _ in range(chance.randint(0, 3)))
    return chance.choice(
        [
            RequestsArrived((request,)),
            PrefillsArrived((request,), (tokens,)),
            ImportsArrived((request,), (tokens,)),
            ImportDone(name, tokens, chance.choice([(), (7,), (7, 8)])),
            KvTransfersRequested((name, other)),
            TransferPinsReleased((name, other)),
            RequestsAborted((name, other)),
            LeasesRenewed((name, other)),
            MoveKv(tokens, name, "nobody", "0", 0, tokens, few, few, few),
            StopMove(tokens),
        ]
    )


@pytest.mark.parametrize("seed", range(6))
def test_orders_out_of_order_leave_nothing_behind(worker, seed):
    gateway, process, _ = worker
    chance = Random(seed)
    for _ in range(30):
        for _ in range(chance.randint(1, 10)):
            gateway.send(TO_WORKER.encode(an_order(chance)))
        assert gateway.audit().problem == ""
    at_rest(gateway)
    assert process.poll() is None


def test_it_still_works_then_drains_and_leaves_when_it_is_unwelcome(worker):
    gateway, process, _ = worker
    at_rest(gateway)
    request = Request("last", (5, 6, 7), SamplingParameters(max_tokens=3, temperature=0.0))
    gateway.send(TO_WORKER.encode(RequestsArrived((request,))))
    reasons: list[FinishReason | None] = [None]
    while reasons[-1] is None:
        reasons += gateway.receive(TokensReported).emission.finish_reasons
    assert len(reasons) == 4
    gateway.send(TO_WORKER.encode(Drain(then_role=Role.DECODE)))
    assert gateway.receive(RoleStateReported) == RoleStateReported("w", Role.BOTH, False)
    gateway.send(TO_WORKER.encode(Undrain()))
    assert gateway.receive(RoleStateReported) == RoleStateReported("w", Role.BOTH, True)
    gateway.send(TO_WORKER.encode(RegistrationRefused("of another model")))
    assert process.wait(PATIENCE_S) == 3


def test_a_second_signal_ends_it_at_once(worker):
    gateway, _, workers = worker
    process = workers.start("hasty", "both")
    gateway.register(TERMS)
    # A worker that no gateway has registered yet leaves at the first signal: be sure that it is.
    gateway.audit()
    process.send_signal(signal.SIGTERM)
    # This gateway never lets the worker go.
    assert gateway.receive(RoleStateReported) == RoleStateReported("hasty", Role.BOTH, False)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM

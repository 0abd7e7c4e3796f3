"""Real gateway processes: what they import, how they start, serve several to a port, and end."""

import asyncio
import json
import resource
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tandem.api.key_ring import KeyRing
from tandem.api.response_cache import ResponseCache
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.requests import TenantConfig
from tandem.config.options import ServeOptions
from tandem.config.processes import GatewayConfiguration, GatewayListening, GatewaySetup
from tandem.facts.health import Health
from tandem.facts.sampling import SamplingParameters
from tandem.facts.serving import Caller
from tandem.live.channels.keys import KeyPair, make_pair
from tandem.live.channels.sockets import NodeKeys
from tandem.live.gateway.operators import OperatorClient, OperatorFailed
from tandem.live.processes.gateway import Configurations, assemble_gateway
from tests.cluster.ledger_engine import answer
from tests.config.clusters import cluster_of_one
from tests.live.ends import KEYS, NODE_KEYS, PATIENCE_S
from tests.live.gateway_side import Processes
from tests.live.toy_cluster import CONTEXT_TOKENS, EXPORT, ToyWorker, until

HEALTH = Health(report_interval_s=0.02, heartbeat_timeout_s=5.0)
START = """
import sys
from pathlib import Path
from tandem.live.processes.gateway import run_gateway
from tandem.config.processes import GatewaySetup, read_setup
assert "torch" not in sys.modules, "importing a gateway imports torch"
try:
    run_gateway(read_setup(GatewaySetup, Path(sys.argv[1])))
finally:
    assert "torch" not in sys.modules, "running a gateway imports torch"
"""
OF_MINI = replace(EXPORT, model="tandem-mini", revision="main")


def setup_in(folder: Path, name: str = "g0", **changes) -> GatewaySetup:
    values = {
        "gateway": name,
        "model": None,
        "options": ServeOptions(port=0),
        "listen": "tcp://127.0.0.1:0",
        "keys": KEYS,
        "cluster": replace(cluster_of_one(health=HEALTH), block_size=16),
        "state_directory": str(folder),
    }
    return GatewaySetup(**values | changes)


@contextmanager
def process(setup: GatewaySetup):
    processes = Processes(Path(setup.state_directory))
    try:
        yield processes.launch(setup.gateway, (sys.executable, "-c", START), setup)
    finally:
        processes.kill_all()


async def listening(setup: GatewaySetup, gateway: subprocess.Popen) -> GatewayListening:
    file = Path(setup.state_directory) / f"{setup.gateway}.json"
    await until(lambda: file.exists() or gateway.poll() is not None)
    assert gateway.poll() is None, (file.parent / f"{setup.gateway}.log").read_text()
    return msgspec.json.decode(file.read_bytes(), type=GatewayListening)


def complete(url: str, **body):
    body = {
        "prompt": [1, 2, 3],
        "temperature": 0,
        "return_token_ids": True,
        "ignore_eos": True,
    } | body
    call = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(call, timeout=PATIENCE_S) as reply:
        return reply.read()


def probe(address: tuple[str, int], path: str) -> bytes:
    """The beginning of the answer on a connection of its own."""
    with socket.create_connection(address, PATIENCE_S) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return client.recv(100)


async def test_gateways_share_a_port_serve_and_end_orderly(tmp_path):
    worker = ToyWorker("w0", export=OF_MINI)
    cluster = replace(cluster_of_one(health=HEALTH), block_size=16, gateways=2)
    first = setup_in(tmp_path, cluster=cluster)
    with process(first) as one:
        here = await listening(first, one)
        port = int(here.url.rpartition(":")[2])
        second = setup_in(tmp_path, "g1", options=ServeOptions(port=port), cluster=cluster)
        with process(second) as two:
            there = await listening(second, two)
            assert there.url == here.url
            assert there.endpoint != here.endpoint
            assert (here.pid, there.pid) == (one.pid, two.pid)
            await serve_both(worker, here, there)
            await see_both(here.url)
            # An answer under way goes on after the first signal, to its end.
            worker.engine.gate.clear()
            under_way = asyncio.create_task(asyncio.to_thread(complete, here.url, max_tokens=5))
            await until(lambda: not worker.machine.idle)
            for each in (one, two):
                each.send_signal(signal.SIGTERM)
            worker.engine.gate.set()
            assert len(json.loads(await under_way)["choices"][0]["token_ids"]) == 5
            for each in (one, two):
                assert await asyncio.to_thread(each.wait, PATIENCE_S) == 0
            await until(lambda: worker.drained)
            await worker.stop()


async def serve_both(worker: ToyWorker, *gateways: GatewayListening) -> None:
    for each in gateways:
        with OperatorClient(each.endpoint, NODE_KEYS, PATIENCE_S) as client:
            assert (await asyncio.to_thread(client.status)).workers == ()
    worker.start(*(each.endpoint for each in gateways))
    for each in gateways:
        with OperatorClient(each.endpoint, NODE_KEYS, PATIENCE_S) as client:
            while not (await asyncio.to_thread(client.status)).workers:
                pass
    for number in range(8):
        seed = number % 4
        reply = await asyncio.to_thread(complete, gateways[0].url, seed=seed, max_tokens=9)
        got = json.loads(reply)["choices"][0]["token_ids"]
        sampling = SamplingParameters(temperature=0, seed=seed, max_tokens=9)
        assert got == answer((1, 2, 3), sampling, CONTEXT_TOKENS)


async def see_both(url: str) -> None:
    """Whichever gateway a look reaches, it shows what both have done."""
    shown: set[str] = set()
    while True:
        seen = json.loads(await asyncio.to_thread(fetched, f"{url}/tandem/overview"))["overview"]
        if seen["server"] == "g0, g1":
            break
    assert seen["finished"] == 8
    assert sum(each["kept"] for each in seen["bins"]) == 8
    assert sum(each["output_tokens"] for each in seen["bins"]) == 72
    assert sum(each["ttft"]["count"] for each in seen["bins"] if each["ttft"]) == 8
    (worker,) = seen["workers"]
    assert (worker["prompts"], worker["output_tokens"]) == (8, 72)
    # Each gateway has seen it join.
    assert [each["text"] for each in seen["events"]] == ["w0 joined as both"]
    lines = json.loads(await asyncio.to_thread(fetched, f"{url}/tandem/requests"))["data"]
    assert len(lines) == 8
    for line in lines:
        request_id = line["request_id"]
        shown.add(request_id.partition(".")[0])
        path = f"{url}/tandem/requests/{request_id}"
        (detail,) = json.loads(await asyncio.to_thread(fetched, path))["data"]
        assert detail["line"]["ending"] == "finished"
    assert shown <= {"g0", "g1"}


def fetched(url: str) -> bytes:
    # Each call has a connection of its own, so that both gateways get some.
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
        return reply.read()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"cluster": replace(cluster_of_one(), model="nowhere")}, "there is no 'nowhere'"),
        ({"listen": "tcp://256.0.0.1:1"}, "cannot listen for workers"),
    ],
)
def test_a_gateway_that_cannot_start_logs_why(tmp_path, changes, problem):
    with process(setup_in(tmp_path, **changes)) as gateway:
        assert gateway.wait(PATIENCE_S) == 2
    log = (tmp_path / "g0.log").read_text()
    assert problem in log
    assert "Traceback" not in log
    assert KEYS.gateway_secret not in log


def test_a_new_configuration_changes_keys_and_response_cache_once_it_is_taken(tmp_path):
    setup = setup_in(tmp_path, options=ServeOptions(port=0, response_cache_mib=1))
    setup = msgspec.structs.replace(setup, cluster=with_tenants(setup.cluster, acme=False))
    assembled = assemble_gateway(setup)
    ring = KeyRing(assembled.api)
    cache = ResponseCache(assembled.api.response_cache, "tandem-mini")
    configurations = Configurations(setup, assembled, ring, cache)
    cluster = with_tenants(setup.cluster, acme=True, globex=True)
    wanted = GatewayConfiguration(number=1, cluster=cluster, options=setup.options, plans=False)
    new = configurations.make(msgspec.json.encode(wanted))
    assert new.change().config.configuration == 1
    globex = b"globex-key"
    assert (ring.owner_of(globex), cache.serves(Caller("acme"))) == (None, False)
    new.taken()
    assert (ring.owner_of(globex), cache.serves(Caller("acme"))) == ("globex", True)


def with_tenants(cluster: Cluster, **cached: bool) -> Cluster:
    """Each with a key, and with a response cache or without."""
    tenants = (
        TenantConfig(name, api_keys=(f"{name}-key",), response_cache=each)
        for name, each in cached.items()
    )
    return replace(cluster, tenants=tuple(tenants))


async def test_idle_clients_leave_files_to_workers_and_operators(tmp_path):
    setup = setup_in(tmp_path)
    with process(setup) as gateway, ExitStack() as clients:
        here = await listening(setup, gateway)
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (120, 120))
        address = ("127.0.0.1", int(here.url.rpartition(":")[2]))
        for _ in range(150):
            clients.enter_context(socket.create_connection(address, PATIENCE_S))
        assert probe(address, "/v1/models").startswith(b"HTTP/1.1 503")
        assert probe(address, "/health").startswith(b"HTTP/1.1 200")
        with OperatorClient(here.endpoint, NODE_KEYS, PATIENCE_S) as operator:
            assert (await asyncio.to_thread(operator.status)).gateway == "g0"
        assert gateway.poll() is None


async def test_only_an_operator_configures_and_a_check_changes_nothing(tmp_path):
    own = make_pair()
    keys = msgspec.structs.replace(
        KEYS, operator_public=own.public, worker_public=NODE_KEYS.own.public
    )
    setup = setup_in(tmp_path, keys=keys)
    operator = NodeKeys(KeyPair(own.public, own.secret), KEYS.gateway_public)
    pool = replace(setup.cluster.pools[0], name="another")
    cluster = replace(setup.cluster, pools=(pool,), explain_memory_bytes=0.0)
    wanted = msgspec.json.encode(
        GatewayConfiguration(number=3, cluster=cluster, options=setup.options, plans=False)
    )
    with process(setup) as gateway:
        here = await listening(setup, gateway)
        with (
            OperatorClient(here.endpoint, NODE_KEYS, PATIENCE_S) as worker,
            OperatorClient(here.endpoint, operator, PATIENCE_S) as client,
        ):
            with pytest.raises(OperatorFailed, match="worker's"):
                await asyncio.to_thread(worker.configure, 3, wanted, check_only=False)
            with pytest.raises(OperatorFailed, match="cannot be read"):
                await asyncio.to_thread(client.configure, 3, b"{}", check_only=True)
            for check_only, number in ((True, 0), (False, 3), (False, 3)):
                # What was taken may be asked for again.
                await asyncio.to_thread(client.configure, 3, wanted, check_only=check_only)
                assert (await asyncio.to_thread(client.status)).configuration == number
            with pytest.raises(OperatorFailed, match="3 has been taken since"):
                await asyncio.to_thread(client.configure, 2, wanted, check_only=False)
        gateway.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(gateway.wait, PATIENCE_S) == 0

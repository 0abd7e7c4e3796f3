"""A worker's key is revoked while it is connected, and can never act as an operator's."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tandem.commands.cluster.key_files import read_worker_keys
from tandem.commands.cluster.setups import Setups, write_cluster
from tandem.commands.main import app
from tandem.config.cluster_live import checked
from tandem.config.cluster_tree import parse
from tandem.facts.cluster_messages import Goodbye, Unwelcome
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.gateway_messages import PeerGone, WorkerSaid
from tandem.facts.node_messages import GatewayConnected, GatewaySaid
from tandem.facts.operator_messages import Done
from tandem.live.channels.admitted import Admitted, AdmittedKeys, PeerRole
from tandem.live.channels.gateway_channel import GatewayChannel, OperatorSaid
from tandem.live.channels.sockets import GatewayKeys, NodeKeys
from tandem.live.gateway.operator import OperatorClient, OperatorFailed
from tandem.live.launching.state_directory import StateDirectory
from tandem.wire.curve import make_pair
from tests.live.ends import PATIENCE_S, News, node_end

GATEWAY, OPERATOR, ONE, OTHER = (make_pair() for _ in range(4))


def lines(*workers, operators=(OPERATOR,)) -> str:
    told = [Admitted(PeerRole.WORKER, pair.public, "w") for pair in workers]
    told += [Admitted(PeerRole.OPERATOR, pair.public, "o") for pair in operators]
    return "# who may come in\n" + "".join(f"{line}\n" for line in told)


@pytest.fixture
def file(tmp_path) -> Path:
    (tmp_path / "admitted").write_text(lines(ONE, OTHER))
    return tmp_path / "admitted"


def keys_of(pair) -> NodeKeys:
    return NodeKeys(pair, GATEWAY.public)


def opened(file: Path, news: News) -> tuple[GatewayChannel, str]:
    channel = GatewayChannel(
        "tcp://127.0.0.1:0", GatewayKeys(GATEWAY, AdmittedKeys((), file)), news
    )
    return channel, channel.open()


def test_a_revoked_key_cuts_the_worker_that_has_it_and_no_other(file):
    async def scenario():
        at_gateway, at_one, at_other, again = News(), News(), News(), News()
        gateway, endpoint = opened(file, at_gateway)
        one = node_end(endpoint, at_one, name="one/a", keys=keys_of(ONE))
        other = node_end(endpoint, at_other, name="other/a", keys=keys_of(OTHER))
        for end, news in ((one, at_one), (other, at_other)):
            await news.first(GatewayConnected)
            end.send(Goodbye("here"))
        await at_gateway.first(WorkerSaid, 2)
        file.write_text(lines(OTHER))
        # As a timer has it done every second.
        gateway._senders.review()
        assert await at_gateway.first(PeerGone) == PeerGone("one/a/1", "its key was revoked")
        told = (await at_one.first(GatewaySaid)).message
        assert isinstance(told, Unwelcome)
        assert "its key was revoked" in told.reason
        # One that does not care is not heard, and comes in no more.
        one.send(Goodbye("still here"))
        late = node_end(endpoint, again, name="one/b", keys=keys_of(ONE))
        assert "refuses this key" in await again.first(str)
        other.send(Goodbye("all is well"))
        await at_gateway.first(WorkerSaid, 3)
        assert {said.message.worker for said in at_gateway.of(WorkerSaid)} == {
            "here",
            "all is well",
        }
        assert len(at_gateway.of(PeerGone)) == 1
        for channel in (one, other, late, gateway):
            await channel.close(0.0)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_new_key_comes_in_at_once(file):
    async def scenario():
        at_gateway, news = News(), News()
        gateway, endpoint = opened(file, at_gateway)
        newcomer = make_pair()
        file.write_text(lines(ONE, newcomer))
        end = node_end(endpoint, news, keys=keys_of(newcomer))
        await news.first(GatewayConnected)
        for channel in (end, gateway):
            await channel.close(0.0)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_workers_key_cannot_act_as_an_operators_nor_the_other_way_round(file):
    async def scenario():
        at_gateway, news = News(), News()
        gateway, endpoint = opened(file, at_gateway)

        def drained(pair) -> None:
            with OperatorClient(endpoint, keys_of(pair), timeout_s=PATIENCE_S) as client:
                client.drain("w0")

        def asked(question: str) -> None:
            with OperatorClient(endpoint, keys_of(ONE), timeout_s=PATIENCE_S) as client:
                getattr(client, question)(*(["w0"] if question == "undrain" else []))

        for attack in ("undrain", "audit"):
            with pytest.raises(OperatorFailed, match="this key is a worker's"):
                await asyncio.to_thread(asked, attack)
        with pytest.raises(OperatorFailed, match="this key is a worker's"):
            await asyncio.to_thread(drained, ONE)
        assert not at_gateway.told
        # The same question with the right key is heard; what it is told is not this test's matter.
        waiting = asyncio.ensure_future(asyncio.to_thread(drained, OPERATOR))
        said = await at_gateway.first(OperatorSaid)
        posing = node_end(endpoint, news, name="w9/a", keys=keys_of(OPERATOR))
        await news.first(GatewayConnected)
        posing.send(Goodbye("w9"))
        gateway.answer(said.peer, Done(said.message.question))
        await waiting
        honest = News()
        last = node_end(endpoint, honest, name="w2/a", keys=keys_of(OTHER))
        await honest.first(GatewayConnected)
        last.send(Goodbye("w2"))
        await at_gateway.first(WorkerSaid)
        assert [said.message.worker for said in at_gateway.of(WorkerSaid)] == ["w2"]
        for channel in (posing, last, gateway):
            await channel.close(0.0)

    asyncio.run(asyncio.wait_for(scenario(), 3 * PATIENCE_S))


@pytest.mark.parametrize("slip", ["", "# nothing\n", "worker short w\n", "admin x y\n", None])
def test_a_slip_in_the_file_leaves_the_last_keys_valid(file, slip):
    known = AdmittedKeys((), file)
    file.unlink() if slip is None else file.write_text(slip)
    known.look()
    assert known.may(ONE.public, PeerRole.WORKER)
    assert known.may(OPERATOR.public, PeerRole.OPERATOR)
    assert not known.may(ONE.public, PeerRole.OPERATOR)
    with pytest.raises(InvalidConfiguration):
        AdmittedKeys((), file)


def test_every_process_of_a_cluster_has_a_key_of_its_own(tmp_path):
    text = "model: tandem-mini\nblock_size: 16\nserve: {kv-cache-memory: 16MiB}\npools:\n"
    text += "  - {name: w, role: both, device: cpu, count: 2}\n"
    live = checked(parse(text, "c.yaml"), tmp_path)
    made, directory = Setups(live.cluster), StateDirectory(tmp_path / "state")
    directory.claim()
    gateways = ("tcp://127.0.0.1:1",)
    one, other = (made.worker(live.cluster.pools[0], f"w-{i}", gateways).keys for i in (0, 1))
    again = made.worker(live.cluster.pools[0], "w-0", gateways).keys
    assert one == again
    assert one.worker_secret != other.worker_secret
    assert one.transfer_secret == other.transfer_secret != ""
    for keys in (one, other):
        assert not keys.gateway_secret
        assert not keys.operator_secret
    gateway = made.gateway(0, directory.path, "tcp://127.0.0.1:0")
    assert not gateway.keys.worker_secret
    assert not gateway.keys.operator_secret
    write_cluster(live, made, directory)
    known = AdmittedKeys((), Path(gateway.admitted))
    for keys in (one, other):
        assert known.may(keys.worker_public, PeerRole.WORKER)
        assert not known.may(keys.worker_public, PeerRole.OPERATOR)


def test_one_more_workers_keys_are_made_beside_the_others(tmp_path):
    folder = tmp_path / "keys"
    for words in (["keys", str(folder)], ["keys", str(folder), "--worker", "gpu-7"]):
        assert CliRunner().invoke(app, words).exit_code == 0
    first, more = read_worker_keys(folder / "worker.json"), folder / "worker-gpu-7.json"
    second = read_worker_keys(more)
    assert (first.gateway_public, first.transfer_secret) == (
        second.gateway_public,
        second.transfer_secret,
    )
    known = AdmittedKeys((), folder / "admitted")
    assert known.may(first.worker_public, PeerRole.WORKER)
    assert known.may(second.worker_public, PeerRole.WORKER)
    told = (folder / "admitted").read_text().splitlines()
    (folder / "admitted").write_text("\n".join(line for line in told if "gpu-7" not in line))
    assert known.look()
    assert not known.admits(second.worker_public)
    assert more.stat().st_mode & 0o077 == 0
    assert CliRunner().invoke(app, ["keys", str(folder), "--worker", "gpu-7"]).exit_code != 0

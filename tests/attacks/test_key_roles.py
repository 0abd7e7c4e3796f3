"""A worker's key is revoked while it is connected, and can never act as an operator's."""

import asyncio
import resource
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from tandem.config.cluster.live import checked
from tandem.config.cluster.tree import parse
from tandem.facts.errors import InvalidConfiguration
from tandem.live.channels.gateway_channel import GatewayChannel, MessageFromOperator
from tandem.live.channels.keys import Admitted, AdmittedKeys, KeyPair, PeerRole, make_pair
from tandem.live.channels.node_channel import NodeChannel
from tandem.live.channels.sockets import GatewayKeys, NodeKeys
from tandem.live.gateway.operators import OperatorClient, OperatorFailed
from tandem.live.launching.state_directory import StateDirectory
from tandem.live.processes.gateway import _admitted as admitted_of
from tandem.live.processes.key_files import read_worker_keys
from tandem.live.processes.setups import Setups, write_cluster
from tandem.messages.cluster import Deregister, RegistrationRefused
from tandem.messages.gateway import MessageFromWorker, PeerGone
from tandem.messages.node import GatewayConnected, MessageFromGateway
from tandem.messages.operator import Done
from tests.cluster.cluster_parts import GatewayUnderTest, register
from tests.commands.cli import tandem
from tests.coroutines import close_all
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


class Gate:
    """A gateway's end that admits those whom a file names, and workers' ends for it."""

    def __init__(self, file: Path) -> None:
        self.news = News()
        keys = GatewayKeys(GATEWAY, AdmittedKeys((), file))
        self.channel = GatewayChannel("tcp://127.0.0.1:0", keys, self.news)
        self.endpoint = self.channel.open()

    async def joined(
        self, pair: KeyPair, name: str = "one/a", worker: str = "here"
    ) -> tuple[NodeChannel, News]:
        """A worker's end that is connected, and has sent its first message."""
        news = News()
        end = node_end(self.endpoint, news, name=name, keys=NodeKeys(pair, GATEWAY.public))
        await news.first(GatewayConnected)
        end.send(Deregister(worker))
        return end, news

    async def refuses(self, pair: KeyPair, name: str) -> bool:
        news = News()
        node_end(self.endpoint, news, name=name, keys=NodeKeys(pair, GATEWAY.public))
        return "refuses this key" in await news.first(str)

    def client(self, pair: KeyPair) -> OperatorClient:
        return OperatorClient(self.endpoint, NodeKeys(pair, GATEWAY.public), timeout_s=PATIENCE_S)

    def review(self) -> None:
        """As a timer has it done every second."""
        self.channel._senders.review()

    @property
    def workers(self) -> list[str]:
        """Of whom a message came, in order."""
        return [each.message.worker for each in self.news.of(MessageFromWorker)]


@asynccontextmanager
async def gate_of(file: Path):
    gate = Gate(file)
    try:
        yield gate
    finally:
        await close_all()
        await gate.channel.close(0.0)


# It is well: its requests are to blame for nothing.
GONE = PeerGone("one/a/1", "its key was revoked", died=False)


async def test_a_revoked_key_cuts_the_worker_that_has_it_and_no_other(file):
    async with gate_of(file) as gate:
        one, at_one = await gate.joined(ONE)
        other, _ = await gate.joined(OTHER, "other/a")
        await gate.news.first(MessageFromWorker, 2)
        file.write_text(lines(OTHER))
        gate.review()
        assert await gate.news.first(PeerGone) == GONE
        told = (await at_one.first(MessageFromGateway)).message
        assert isinstance(told, RegistrationRefused)
        assert "its key was revoked" in told.reason
        # One that does not care is not heard, and comes in no more.
        one.send(Deregister("still here"))
        assert await gate.refuses(ONE, "one/b")
        other.send(Deregister("all is well"))
        await gate.news.first(MessageFromWorker, 3)
        assert gate.workers == ["here", "here", "all is well"]
        assert gate.news.of(PeerGone) == [GONE]


@pytest.mark.parametrize("noticed", ["a stranger knocked", "it spoke"])
async def test_a_revoked_worker_is_gone_whoever_had_the_file_read(file, noticed):
    async with gate_of(file) as gate:
        one, at_one = await gate.joined(ONE)
        await gate.news.first(MessageFromWorker)
        file.write_text(lines(OTHER))
        assert await gate.refuses(make_pair(), "x/a")
        if noticed == "it spoke":
            one.send(Deregister("still here"))
        else:
            gate.review()
        assert await gate.news.first(PeerGone) == GONE
        assert "its key was revoked" in (await at_one.first(MessageFromGateway)).message.reason
        assert gate.workers == ["here"]


async def test_a_worker_whose_key_is_an_operators_now_is_gone(file):
    async with gate_of(file) as gate:
        await gate.joined(ONE)
        await gate.news.first(MessageFromWorker)
        file.write_text(lines(OTHER, operators=(ONE,)))
        gate.review()
        assert (await gate.news.first(PeerGone)).peer == "one/a/1"


@pytest.mark.parametrize("died", [True, False])
def test_a_revoked_key_is_no_death_of_the_requests_that_were_there(died):
    gateway = GatewayUnderTest(register("w0"), register("w1"))
    gateway.submit("r", 9)
    state = gateway.machine.router.requests["r"]
    gateway.handle(PeerGone(f"{state.prefill}/1", "gone", died=died))
    # It goes on at the other one.
    assert state.names.attempt == 1
    assert state.deaths.total == died


async def test_a_new_key_comes_in_at_once(file):
    async with gate_of(file) as gate:
        newcomer = make_pair()
        file.write_text(lines(ONE, newcomer))
        await gate.joined(newcomer)


async def test_a_workers_key_cannot_act_as_an_operators_nor_the_other_way_round(file):
    async with gate_of(file) as gate:

        def ask(pair: KeyPair, question: str, *words: str) -> None:
            with gate.client(pair) as client:
                getattr(client, question)(*words)

        for question in (("undrain", "w0"), ("audit",), ("drain", "w0")):
            with pytest.raises(OperatorFailed, match="this key is a worker's"):
                await asyncio.to_thread(ask, ONE, *question)
        assert not gate.news.received
        # The same question with the right key is heard; what it is told is not this test's matter.
        waiting = asyncio.create_task(asyncio.to_thread(ask, OPERATOR, "drain", "w0"))
        said = await gate.news.first(MessageFromOperator)
        await gate.joined(OPERATOR, "w9/a", "w9")
        gate.channel.answer(said.peer, Done(said.message.question))
        await waiting
        await gate.joined(OTHER, "w2/a", "w2")
        await gate.news.first(MessageFromWorker)
        assert gate.workers == ["w2"]


@pytest.mark.parametrize("slip", ["worker short w\n", "admin x y\n", "open to all", None])
def test_a_slip_in_the_file_leaves_the_last_keys_valid(file, slip):
    known = AdmittedKeys((), file)
    if slip == "open to all":
        file.write_text(lines(make_pair()))
        file.chmod(0o666)
    else:
        file.unlink() if slip is None else file.write_text(slip)
    known.look()
    assert known.may(ONE.public, PeerRole.WORKER)
    assert known.may(OPERATOR.public, PeerRole.OPERATOR)
    assert not known.may(ONE.public, PeerRole.OPERATOR)
    with pytest.raises(InvalidConfiguration):
        AdmittedKeys((), file)


@pytest.mark.parametrize("content", ["", "# nobody\n"])
def test_the_last_key_can_be_revoked(file, caplog, content):
    fixed = [Admitted(PeerRole.OPERATOR, OPERATOR.public)]
    known = AdmittedKeys(fixed, file)
    file.write_text(content)
    assert known.look()
    assert not known.admits(ONE.public)
    assert known.admits(OPERATOR.public)
    assert "names no key" in caplog.text
    # After a restart no less.
    again = AdmittedKeys(fixed, file)
    assert not again.admits(ONE.public)
    file.write_text(lines(ONE))
    assert again.admits(ONE.public)


def test_a_file_that_was_open_to_all_is_read_once_it_is_not(file):
    file.chmod(0o666)
    with pytest.raises(InvalidConfiguration, match="everybody may write to it"):
        AdmittedKeys((), file)
    file.chmod(0o600)
    known = AdmittedKeys((), file)
    file.chmod(0o666)
    file.write_text(lines(OTHER))
    assert not known.look()
    file.chmod(0o600)
    assert known.look()
    assert not known.may(ONE.public, PeerRole.WORKER)


def test_a_key_is_revoked_though_no_file_could_be_opened_at_first(file, caplog):
    known = AdmittedKeys((), file)
    file.write_text(lines(OTHER))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        assert not known.look()
        assert not known.look()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert known.look()
    assert not known.may(ONE.public, PeerRole.WORKER)
    assert caplog.text.count("stay valid") == 1


CLUSTER = """\
model: tandem-mini
block_size: 16
serve: {kv-cache-memory: 16MiB}
pools:
  - {name: w, role: both, device: cpu, count: 2}
"""


def set_up(folder: Path):
    """A cluster that has its directory and no process yet."""
    live, directory = checked(parse(CLUSTER, "c.yaml"), folder), StateDirectory(folder / "state")
    directory.claim()
    return live, Setups(live.cluster), directory


@pytest.mark.parametrize("line", ["joined", "operator"])
def test_the_keys_of_the_state_directory_are_revoked_as_others_are(tmp_path, line):
    """Those that `tandem join` and `tandem status` find there."""
    live, made, directory = set_up(tmp_path)
    write_cluster(live, made, directory)
    known = admitted_of(made.gateway(0, directory.path, "tcp://127.0.0.1:0"))
    publics = {"joined": made.keys.worker_public, "operator": made.keys.operator_public}
    assert known.admits(publics[line])
    file = directory.path / "admitted"
    assert file.stat().st_mode & 0o777 == 0o600
    stays = [each for each in file.read_text().splitlines() if not each.endswith(f" {line}")]
    file.write_text("\n".join(stays) + "\n")
    known.look()
    assert [name for name, public in publics.items() if not known.admits(public)] == [line]
    # Who looks after the cluster does not lose sight of it.
    assert known.may(made.supervisor_keys.operator_public, PeerRole.OPERATOR)
    found = msgspec.json.decode((directory.path / "keys.json").read_bytes())
    assert found["operator_public"] == made.keys.operator_public
    assert made.supervisor_keys.operator_secret not in found.values()


def test_every_process_of_a_cluster_has_a_key_of_its_own(tmp_path):
    live, made, directory = set_up(tmp_path)
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
    for words in ([], ["--worker", "gpu-7"]):
        assert tandem("keys", folder, *words).exit_code == 0
    first, more = read_worker_keys(folder / "worker.json"), folder / "worker-gpu-7.json"
    second = read_worker_keys(more)
    assert first.gateway_public == second.gateway_public
    assert first.transfer_secret == second.transfer_secret
    known = AdmittedKeys((), folder / "admitted")
    assert known.may(first.worker_public, PeerRole.WORKER)
    assert known.may(second.worker_public, PeerRole.WORKER)
    told = (folder / "admitted").read_text().splitlines()
    (folder / "admitted").write_text("\n".join(line for line in told if "gpu-7" not in line))
    assert known.look()
    assert not known.admits(second.worker_public)
    assert more.stat().st_mode & 0o077 == 0
    assert tandem("keys", folder, "--worker", "gpu-7").exit_code != 0


def test_a_line_is_added_to_what_stands_there_and_to_nothing_else(tmp_path):
    folder = tmp_path / "keys"
    assert tandem("keys", folder).exit_code == 0
    admitted = folder / "admitted"
    # As an editor may leave it.
    admitted.write_text(f"{lines(ONE)}# the last line".rstrip("\n"))
    assert tandem("keys", folder, "--worker", "one").exit_code == 0
    keys = read_worker_keys(folder / "worker-one.json")
    known = AdmittedKeys((), admitted)
    assert known.may(keys.worker_public, PeerRole.WORKER)
    assert known.may(ONE.public, PeerRole.WORKER)
    assert admitted.stat().st_mode & 0o777 == 0o600
    # While somebody else adds a line nothing is lost, nor begun.
    (folder / "admitted.new").touch()
    assert tandem("keys", folder, "--worker", "two").exit_code != 0
    assert not (folder / "worker-two.json").exists()
    (folder / "admitted.new").unlink()
    # A list of this key alone would lock everybody else out.
    admitted.unlink()
    told = tandem("keys", folder, "--worker", "two")
    assert told.exit_code != 0
    assert "there is no" in told.output
    assert not admitted.exists()
    assert not (folder / "worker-two.json").exists()
    left = {path.name for path in folder.iterdir()}
    assert left == {"gateway.json", "worker-one.json", "worker.json"}

"""What a gateway costs: processor time for each token that it streams, with and without HTTP, and
the time that it adds to a first token.

python bench/gateway.py [--streams 64] [--gateways 1] [--seconds 3] [--pace-ms 20]
    [--only inside,http,traced] [--tokens 256]

Behind it is a scripted worker in a process of its own, over a real encrypted socket. `fast`: the
worker draws as fast as the gateway reads, and readers that fall behind get several tokens at once.
`paced`: a step every so often, and while the gateway keeps up each token goes out by itself.
`traced`: what a trace of each call costs, in answers of so many tokens, with and without in turn.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop

from figures import Figure, show, write
from scripted_worker import SPELLED, ScriptedSetup
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.requests import JournalConfig
from tandem.config.cluster.workers import PoolConfig
from tandem.config.options import ServeOptions
from tandem.config.processes import (
    CLUSTER_FILE,
    CurveKeys,
    GatewayListening,
    GatewaySetup,
    write_setup,
)
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.live.channels.gateway_channel import GatewayChannel
from tandem.live.channels.keys import Admitted, AdmittedKeys, KeyPair, PeerRole, make_pair
from tandem.live.channels.sockets import GatewayKeys
from tandem.live.gateway.gateway import Gateway
from tandem.live.processes.gateway import assemble_gateway

CLUSTER = Cluster(
    model="tandem-mini", block_size=16, pools=(PoolConfig("both", "cpu", max_num_seqs=4096),)
)
# As a file: what a journal keeps of it.
CLUSTER_TEXT = """
model: tandem-mini
block_size: 16
pools:
  - {name: both, role: both, count: 1, device: cpu, max_num_seqs: 4096}
"""
GATEWAY_PAIR, WORKER_PAIR = make_pair(), make_pair()
KEYS = CurveKeys(
    gateway_public=GATEWAY_PAIR.public,
    gateway_secret=GATEWAY_PAIR.secret,
    worker_public=WORKER_PAIR.public,
    worker_secret=WORKER_PAIR.secret,
)
FIRST_TOKENS = 100
PROMPT = tuple(range(300, 428))
ENDLESS = 1 << 20
BODY = '{"prompt": [%s], "max_tokens": %d, "stream": true, "ignore_eos": true}'
PATIENCE_S = 30.0
TRACED_ROUNDS = 15


def setup_in(
    folder: Path, name: str, port: int = 0, journal: JournalConfig | None = None, traces: str = ""
) -> GatewaySetup:
    (folder / CLUSTER_FILE).write_text(CLUSTER_TEXT)
    return GatewaySetup(
        gateway=name,
        model=None,
        options=ServeOptions(port=port, max_model_len=8192, otlp_traces_endpoint=traces),
        listen="tcp://127.0.0.1:0",
        keys=KEYS,
        cluster=replace(CLUSTER, journal=journal),
        state_directory=str(folder),
    )


@asynccontextmanager
async def worker(folder: Path, endpoints: list[str], step_s: float) -> AsyncIterator[None]:
    """The scripted worker runs while the block does."""
    file = folder / "worker.json"
    setup = ScriptedSetup(endpoints, *WORKER_PAIR, GATEWAY_PAIR.public, step_s)
    file.write_bytes(msgspec.json.encode(setup))
    process = subprocess.Popen([sys.executable, Path(__file__).parent / "scripted_worker.py", file])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def gateway_inside(
    folder: Path, journal: JournalConfig | None = None
) -> AsyncIterator[tuple[Gateway, str]]:
    assembled = assemble_gateway(setup_in(folder, "g0", journal=journal))
    machine = GatewayMachine(assembled.config)
    gateway = Gateway(assembled.card, machine, assembled.terms, assembled.journal)
    admitted = AdmittedKeys([Admitted(PeerRole.WORKER, WORKER_PAIR.public)])
    keys = GatewayKeys(KeyPair(*GATEWAY_PAIR), admitted)
    channel = GatewayChannel("tcp://127.0.0.1:0", keys, gateway.enqueue)
    endpoint = channel.open()
    await gateway.start(channel)
    try:
        yield gateway, endpoint
    finally:
        await gateway.stop()


class Count:
    """Tokens, and outputs that carried them."""

    def __init__(self) -> None:
        self.tokens = 0
        self.outputs = 0


async def read_inside(gateway: Gateway, number: int, max_tokens: int, count: Count) -> None:
    sampling = SamplingParameters(temperature=0, max_tokens=max_tokens)
    async for output in gateway.generate(Request(str(number), PROMPT, sampling)):
        count.tokens += len(output.tokens)
        count.outputs += 1


async def inside(
    folder: Path,
    streams: int,
    seconds: float,
    step_s: float,
    journal: JournalConfig | None = None,
) -> list[Figure]:
    """The channel, the machine and the mailboxes, in this process."""
    async with AsyncExitStack() as stack:
        gateway, endpoint = await stack.enter_async_context(gateway_inside(folder, journal))
        await stack.enter_async_context(worker(folder, [endpoint], step_s))
        async with asyncio.timeout(PATIENCE_S):
            while not gateway.ready:
                await asyncio.sleep(0.01)
        firsts = []
        for number in range(FIRST_TOKENS if step_s == 0 else 0):
            begin_s = time.perf_counter()
            await read_inside(gateway, number, 1, Count())
            firsts.append((time.perf_counter() - begin_s) * 1e3)
        count = Count()
        # Not so long that a context would end before the time does.
        tasks = [
            asyncio.create_task(read_inside(gateway, 1000 + number, ENDLESS, count))
            for number in range(streams)
        ]
        await asyncio.sleep(0.5)
        before, cpu_s, begin_s = count.tokens, time.process_time(), time.perf_counter()
        outputs = count.outputs
        await asyncio.sleep(seconds)
        tokens = count.tokens - before
        used_s = time.process_time() - cpu_s
        rate = tokens / (time.perf_counter() - begin_s)
        each = tokens / max(1, count.outputs - outputs)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return _figures("inside", firsts, (tokens, used_s, rate, each), step_s)


async def http(
    folder: Path, wanted: tuple[int, int], seconds: float, step_s: float
) -> list[Figure]:
    """Real gateway processes behind one port; their clients share this process."""
    streams, gateways = wanted
    processes: list[subprocess.Popen[bytes]] = []
    told: list[GatewayListening] = []
    try:
        for index in range(gateways):
            port = int(told[0].url.rpartition(":")[2]) if told else 0
            setup = setup_in(folder, f"g{index}", port)
            processes.append(_start(folder, setup))
            told.append(await _listening(folder, setup.gateway))
        async with worker(folder, [each.endpoint for each in told], step_s):
            address = told[0].url.removeprefix("http://").split(":")
            client = Client(address[0], int(address[1]))
            await client.until_ready(gateways)
            firsts = []
            for _ in range(FIRST_TOKENS if step_s == 0 else 0):
                begin_s = time.perf_counter()
                await client.stream(1, Count())
                firsts.append((time.perf_counter() - begin_s) * 1e3)
            count = Count()
            tasks = [
                asyncio.create_task(client.stream(8000, count, again=True)) for _ in range(streams)
            ]
            await asyncio.sleep(1.0)
            before, begin_s = count.tokens, time.perf_counter()
            cpu_s = sum(_cpu_s(process.pid) for process in processes)
            await asyncio.sleep(seconds)
            tokens = count.tokens - before
            used_s = sum(_cpu_s(process.pid) for process in processes) - cpu_s
            rate = tokens / (time.perf_counter() - begin_s)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return _figures("http", firsts, (tokens, used_s, rate, None), step_s)


async def traced(folder: Path, streams: int, seconds: float, answer_tokens: int) -> list[Figure]:
    """Two gateway processes, of which one sends a trace of each call, measured in turn: what else
    the machine does is the same for both."""
    processes: list[subprocess.Popen[bytes]] = []
    told: list[GatewayListening] = []
    used: list[list[float]] = [[], []]
    rates: list[list[float]] = [[], []]
    try:
        async with trace_receiver() as (traces, _):
            for name, url in (("plain", ""), ("traced", traces)):
                processes.append(_start(folder, setup_in(folder, name, traces=url)))
                told.append(await _listening(folder, name))
            async with worker(folder, [each.endpoint for each in told], 0.0):
                hosts = [each.url.removeprefix("http://").split(":") for each in told]
                clients = [Client(host, int(port)) for host, port in hosts]
                for client in clients:
                    await client.until_ready(1)
                sender = _only_child(processes[1].pid)
                sender_s = _cpu_s(sender)
                for _ in range(TRACED_ROUNDS):
                    for place in (0, 1):
                        pid = processes[place].pid
                        cpu_s, rate = await _round(
                            clients[place], pid, streams, seconds, answer_tokens
                        )
                        used[place].append(cpu_s)
                        rates[place].append(rate)
                # Of the rounds with traces; each began half a second before it was measured.
                tokens = sum(rates[1]) * (seconds + 0.5)
                sender_us = (_cpu_s(sender) - sender_s) / tokens * answer_tokens * 1e6
    finally:
        for process in processes:
            process.kill()
            process.wait()
    figures = []
    # What else the machine does only adds to the time, and takes from the tokens.
    least_us = [min(each) * 1e6 for each in used]
    most = [max(each) for each in rates]
    for place, way in enumerate(("no traces", "a trace of each call")):
        name = f"answers of {answer_tokens} tokens, {way}"
        low, _, high = statistics.quantiles(used[place], n=4)
        spread_us = (high - low) / 2 * 1e6
        figures.append(Figure(f"{name}: processor time a token", least_us[place], "us", spread_us))
        figures.append(Figure(f"{name}: streamed", most[place], "token/s"))
    more_us = (least_us[1] - least_us[0]) * answer_tokens
    figures.append(Figure("a trace takes of the gateway", more_us, "us a call"))
    figures.append(Figure("and of the process that sends it", sender_us, "us a call"))
    share = 100 * most[1] / most[0]
    figures.append(Figure("streamed, with traces of what it is without", share, "%", goal=">= 98"))
    return figures


async def _round(
    client: "Client", pid: int, streams: int, seconds: float, answer_tokens: int
) -> tuple[float, float]:
    """Processor seconds a token, and tokens a second."""
    count = Count()
    tasks = [
        asyncio.create_task(client.stream(answer_tokens, count, again=True)) for _ in range(streams)
    ]
    await asyncio.sleep(0.5)
    before, begin_s, cpu_s = count.tokens, time.perf_counter(), _cpu_s(pid)
    await asyncio.sleep(seconds)
    tokens, used_s = count.tokens - before, _cpu_s(pid) - cpu_s
    rate = tokens / (time.perf_counter() - begin_s)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return used_s / max(1, tokens), rate


@asynccontextmanager
async def trace_receiver() -> AsyncIterator[tuple[str, list[int]]]:
    """A receiver of traces that says yes to everything: its URL, and the bytes of each batch."""
    batches: list[int] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):
            while line := await reader.readline():
                head = line + await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                batches.append(len(await reader.readexactly(length)))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", batches
    finally:
        server.close()


class Client:
    """Streams completions over raw sockets: the measuring must cost less than the measured."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    async def until_ready(self, times: int) -> None:
        """Ready so often in a row that every gateway behind the port was asked."""
        async with asyncio.timeout(PATIENCE_S):
            good = 0
            while good < 8 * times:
                reader, writer = await asyncio.open_connection(self._host, self._port)
                writer.write(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                good = good + 1 if b" 200 " in await reader.readline() else 0
                writer.close()
                await asyncio.sleep(0.02)

    async def stream(self, max_tokens: int, count: Count, *, again: bool = False) -> None:
        """Read a stream to its end; with `again` the next one follows. Raises `ConnectionError` for
        one that breaks off."""
        body = (BODY % (",".join(map(str, PROMPT)), max_tokens)).encode()
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        while True:
            reader, writer = await asyncio.open_connection(self._host, self._port)
            try:
                writer.write(head + body)
                last = b""
                while True:
                    chunk = await reader.read(1 << 16)
                    count.tokens += chunk.count(SPELLED)
                    last = (last + chunk)[-64:]
                    if b"[DONE]" in last:
                        break
                    if not chunk:
                        raise ConnectionError("an answer ended before its end")
            finally:
                writer.close()
            if not again:
                return


def _figures(
    way: str, firsts: list[float], measured: tuple[int, float, float, float | None], step_s: float
) -> list[Figure]:
    tokens, used_s, rate, each = measured
    pace = "paced" if step_s else "fast"
    figures = [
        Figure(
            f"{way}, {pace}: processor time a token",
            used_s / max(1, tokens) * 1e6,
            "us",
            goal="<= 100 us",
            higher_is_better=False,
        ),
        Figure(f"{way}, {pace}: streamed", rate, "token/s"),
    ]
    if each is not None:
        figures.append(Figure(f"{way}, {pace}: tokens an output", each, ""))
    if firsts:
        figures.append(
            Figure(
                f"{way}: first token, median",
                statistics.median(firsts),
                "ms",
                spread=statistics.pstdev(firsts) / 2,
                goal="<= 2 ms" if way == "inside" else "",
                higher_is_better=False,
            )
        )
    return figures


def _start(folder: Path, setup: GatewaySetup) -> "subprocess.Popen[bytes]":
    file = folder / f"{setup.gateway}.setup.json"
    write_setup(setup, file)
    with (folder / f"{setup.gateway}.log").open("wb") as log:
        command = [sys.executable, "-m", "tandem.live.processes.gateway", str(file)]
        return subprocess.Popen(command, stdout=log, stderr=log)


async def _listening(folder: Path, name: str) -> GatewayListening:
    file = folder / f"{name}.json"
    async with asyncio.timeout(PATIENCE_S):
        while not file.exists():
            await asyncio.sleep(0.02)
    return msgspec.json.decode(file.read_bytes(), type=GatewayListening)


def _cpu_s(pid: int) -> float:
    """User and system time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _only_child(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


async def _measure(
    ways: set[str], wanted: tuple[int, int], seconds: float, pace_s: float, answer_tokens: int
) -> list[Figure]:
    figures: list[Figure] = []
    if "traced" in ways:
        with tempfile.TemporaryDirectory() as name:
            figures += await traced(Path(name), wanted[0], seconds, answer_tokens)
    for step_s in (0.0, pace_s):
        with tempfile.TemporaryDirectory() as name:
            if "inside" in ways:
                figures += await inside(Path(name), wanted[0], seconds, step_s)
            if "http" in ways:
                figures += await http(Path(name), wanted, seconds, step_s)
    return figures


def main(
    streams: Annotated[int, typer.Option(help="Clients that stream at a time.")] = 64,
    gateways: Annotated[int, typer.Option(help="Gateway processes that share the port.")] = 1,
    seconds: Annotated[float, typer.Option(help="How long each is measured.")] = 3.0,
    pace_ms: Annotated[float, typer.Option(help="Between two paced steps.")] = 20.0,
    only: Annotated[
        str, typer.Option(help="inside, http, traced or several, separated by commas.")
    ] = "",
    tokens: Annotated[int, typer.Option(help="Of an answer, with and without traces.")] = 256,
    output: Annotated[Path, typer.Option(help="JSON of the figures.")] = Path(
        "results/gateway.json"
    ),
) -> None:
    """Measure and print; the machine should have nothing else to do."""
    ways = set(only.split(",")) if only else {"inside", "http", "traced"}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(_measure(ways, (streams, gateways), seconds, pace_ms / 1e3, tokens))
    show(figures, "Gateway")
    write(figures, output)


if __name__ == "__main__":
    typer.run(main)

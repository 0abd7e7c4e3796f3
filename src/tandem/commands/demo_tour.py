"""`tandem demo`: prefill and decode workers with a shared pool under a load of streams, the page in
a browser, a worker that is killed, and streams that go on as if nothing had been."""

import asyncio
import os
import signal
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from tandem.bench.client import Client, Endpoint, RequestFailed
from tandem.bench.dialogue import Answer, Asked, stream_answer
from tandem.commands.demo_kill import NotTheSame
from tandem.commands.page import operator_address
from tandem.commands.terminal import print_plain
from tandem.commands.which_cluster import RunningCluster
from tandem.live.launching.state_directory import StateDirectory
from tandem.messages.gateway import WorkerStatus

CLUSTER = "laptop-pd"
# Beside whatever else runs on this machine, with a pool and a journal, which the page plays.
OVERRIDES = ("name=demo", "serve.port=0", "tiers.remote.capacity=256MiB")
CLIENTS = 6
# So many go on while somebody tries what comes next: what he tries needs room on the machine, too.
CLIENTS_AFTERWARDS = 2
TIMEOUT_S = 60.0
# Long enough to be under way for a while, and to begin alike: the pool and prefix cache have work.
BODY: Mapping[str, Any] = {
    "max_tokens": 400, "ignore_eos": True, "temperature": 0.8, "stream": True,
    "stream_options": {"include_usage": True},
}  # fmt: skip
OPENINGS = (
    "Once upon a time there was a little girl named Lily. She had a cat",
    "Once upon a time there was a little girl named Lily. She went to the park",
    "One day, a boy named Tim found a big box. He wanted to",
)
# After the kill the load goes on for so long, and the launcher starts the worker anew meanwhile.
AFTERWARDS_S = 6.0
POLL_S = 0.2


@dataclass
class Stream:
    """One answer of the load. `pauses_s` are the times between two of its pieces; of one that was
    under way when the worker died, `tokens_before` had come by then."""

    body: Mapping[str, Any]
    answer: Answer = field(default_factory=Answer)
    longest_pause_s: float = 0.0
    tokens_before: int | None = None
    problem: str = ""
    _before_s: float | None = None

    def took(self, _: str) -> None:
        now_s = self.answer.clock()
        if self._before_s is not None:
            self.longest_pause_s = max(self.longest_pause_s, now_s - self._before_s)
        self._before_s = now_s


@dataclass
class Tour:
    """The acts, beside a cluster that runs in `directory`."""

    console: Console
    directory: StateDirectory
    seconds: float
    opens_browser: bool
    streams: list[Stream] = field(default_factory=list)
    under_way: set[int] = field(default_factory=set)
    _clients: int = CLIENTS

    @property
    def running(self) -> RunningCluster:
        record = self.directory.read()
        assert record is not None, "the tour runs beside its cluster"
        return RunningCluster(self.directory, record)

    async def play(self, *, stays: bool) -> None:
        """All of it; with `stays` a small load goes on until this is cancelled. Raises
        `TandemError`, also where a stream broke or an answer changed."""
        self._welcome()
        async with Client(Endpoint(self.running.record.url, None, TIMEOUT_S)) as client:
            model = (await client.choose_model(None)).id
            load = [
                asyncio.create_task(self._client(client, model, number))
                for number in range(CLIENTS)
            ]
            try:
                await self._kill_in_the_middle()
                if stays:
                    self._clients = CLIENTS_AFTERWARDS
                    await self._judge(client)
                    self._next()
                    await asyncio.gather(*load)
            finally:
                self._clients = 0
            await asyncio.gather(*load)
            if not stays:
                await self._judge(client)
                self._next()

    def _welcome(self) -> None:
        address = operator_address(self.running, "cluster")
        self._head("1. A cluster on this machine")
        self._say(
            "Two workers compute prompts (prefill), two draw answers (decode), a pool keeps KV "
            f"for all of them, and a gateway speaks the OpenAI API. {CLIENTS} clients have stories "
            "told without pause."
        )
        opened = self.opens_browser and webbrowser.open(address)
        self._say("\nThe page is open in your browser." if opened else "\nOpen the page:")
        print_plain(self.console, f"  {address}", "bold cyan")

    async def _client(self, client: Client, model: str, number: int) -> None:
        """Tells one story after the other, each with a seed of its own."""
        told = 0
        while number < self._clients:
            opening = OPENINGS[(number + told) % len(OPENINGS)]
            seed = number * 1000 + told
            stream = Stream({"model": model, "prompt": opening, "seed": seed, **BODY})
            place = len(self.streams)
            self.streams.append(stream)
            self.under_way.add(place)
            asked = Asked("/v1/completions", stream.body)
            try:
                await stream_answer(client, asked, stream.answer, stream.took)
            except RequestFailed as failure:
                stream.problem = str(failure)
            self.under_way.discard(place)
            told += 1

    async def _kill_in_the_middle(self) -> None:
        await asyncio.sleep(self.seconds)
        self._head("2. A worker is killed in the middle of it")
        victim = await self._busiest()
        pid = self.running.record.processes[victim].pid
        os.kill(pid, signal.SIGKILL)
        for place in self.under_way:
            stream = self.streams[place]
            stream.tokens_before = stream.answer.output_tokens
        self.console.print(
            f"[bold red]>>> kill -9 {pid}: {victim} is dead, with {len(self.under_way)} streams "
            "under way <<<[/bold red]"
        )
        await asyncio.sleep(AFTERWARDS_S)

    async def _busiest(self) -> str:
        """The decode worker that has most to do."""
        workers: list[WorkerStatus] = []
        while not workers:
            statuses = await self.running.operators().statuses()
            known = [worker for status in statuses for worker in status.workers]
            workers = [each for each in known if each.role.decodes]
            await asyncio.sleep(0 if workers else POLL_S)
        busiest = max(workers, key=lambda each: (each.load.running_sequences, each.worker))
        return busiest.worker

    async def _judge(self, client: Client) -> None:
        """What became of the streams, and whether an answer changed: it is asked for again."""
        self._head("3. No stream broke")
        ended = [each for each in self.streams if each.answer.ended or each.problem]
        broken = [each for each in ended if each.problem]
        if broken:
            raise NotTheSame(f"{len(broken)} streams broke: {broken[0].problem}")
        hit = [each for each in ended if each.tokens_before is not None]
        if not hit:
            raise NotTheSame("no stream was under way when the worker died; try again")
        statuses = await self.running.operators().statuses()
        takeovers = sum(status.takeovers for status in statuses)
        again = sum(status.recomputed_tokens for status in statuses)
        longest_s = max(each.longest_pause_s for each in hit)
        self._say(
            f"{len(ended)} streams ended, 0 broke. {takeovers} went on at another worker from the "
            f"KV that the pool had of them, with {again} tokens computed again; the longest pause "
            f"that any client saw was {longest_s * 1e3:.0f} ms."
        )
        for each in hit:
            repeated = Answer()
            asked = Asked("/v1/completions", each.body)
            await stream_answer(client, asked, repeated, lambda _: None)
            if repeated.text != each.answer.text:
                raise NotTheSame("an answer that survived differs from an undisturbed one")
        self._say(
            f"The {len(hit)} answers that were under way, asked for once more undisturbed, are "
            "letter by letter the same. The dead worker was started anew meanwhile."
        )

    def _next(self) -> None:
        self._head("4. What to try next")
        self._say(
            "On the page: Requests shows where the time of each one went and why it went where it "
            "did; Cluster, click a worker to drain it or change its role; What if? plays the last "
            "minutes with other policies; Try is a conversation. In another terminal:"
        )
        url = self.running.record.url
        for command in (
            f"tandem top --url {url}",
            f"tandem chat --url {url}",
            "tandem status",
            "tandem flip prefill-1 decode",
            "tandem demo --overload      # two tenants, a flood, and who is protected",
        ):
            print_plain(self.console, f"  $ {command}", "dim")

    def _head(self, title: str) -> None:
        self.console.print(f"\n[bold]{title}[/bold]\n")

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)

"""Speculation: tokens a second of the bundled model with each proposer, beside the plain engine in
the same run, by kind of answer; and what checking drafts costs a model of half a billion
parameters.

Usage: python bench/speculation.py [--rounds 5] [--tasks 8] [--only mini|cost] [--sequences 1,16]
       [--tokens 4] [--branches 1] [--always] [--quantization int8]
"""

import argparse
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np
import torch
from msgspec import structs
from rich.console import Console
from rich.table import Table

from model import BLOCK_SIZE, CONTEXT_TOKENS, HALF_BILLION, Rig, load
from tandem.bench.tasks.evaluation import choose_suites, make_tasks, scaled_counter
from tandem.bench.tasks.task import Task
from tandem.cluster.worker.machine import WorkerMachine
from tandem.config.environment import BUNDLED_MODEL
from tandem.config.options import Proposers, ServeOptions
from tandem.engine.engine import Engine
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import StepPlan, StepResult
from tandem.kernels.faces import choose_kernels
from tandem.kv.store import KvStore
from tandem.live.processes.model import load_model, plan_model
from tandem.live.processes.speculation import proposer_maker
from tandem.messages.worker import EmitTokens, RequestsArrived, RunStep, StepDone
from tandem.models.decoder import Decoder
from tandem.text.chat import ChatOptions
from tandem.text.model import TextModel

PROPOSERS: tuple[Proposers, ...] = ("none", "ngram", "draft", "medusa", "eagle")
BRANCHING = ("draft", "medusa", "eagle")
SUITES = ("recall-1k", "arithmetic", "tool-call", "fluency")
ANSWER_TOKENS = 160
STEPS = 12
# By the parents of the drafts.
WAYS_TO_DRAFT = {
    "none": (),
    **{str(count): tuple(range(-1, count - 1)) for count in (1, 2, 4, 8)},
    "8 as a tree": (-1, -1, 0, 0, 1, 1, 2, 2),
}


@dataclass
class Measured:
    """One way to serve: answers and decode seconds of all its runs; and of decode steps, by how
    many drafts they check, the seconds in the engine and those before it in the machine."""

    machine: WorkerMachine
    engine: Engine
    spent: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def run(self, requests: Sequence[Request]) -> tuple[dict[str, list[int]], float]:
        """All answers, and the seconds from the last first token to the end, a token each."""
        answers: dict[str, list[int]] = {request.request_id: [] for request in requests}
        events: deque[RequestsArrived | StepDone] = deque([RequestsArrived(tuple(requests))])
        begun_ns, before = 0, 0
        while events:
            event, before_s = events.popleft(), time.perf_counter()
            effects = self.machine.handle(event, time.monotonic_ns())
            handled_s = time.perf_counter()
            for effect in effects:
                if isinstance(effect, RunStep):
                    events.append(StepDone(self.engine.run(effect.plan)))
                    drafts = int(effect.plan.draft_counts.sum())
                    if effect.plan.batched_tokens == len(effect.plan.slots) + drafts:
                        done_s = time.perf_counter()
                        self.spent[drafts].append((done_s - handled_s, handled_s - before_s))
                elif isinstance(effect, EmitTokens):
                    for request_id, token in zip(effect.request_ids, effect.tokens, strict=True):
                        answers[request_id].append(token)
                    if not begun_ns and all(answers.values()):
                        begun_ns = time.monotonic_ns()
                        before = sum(map(len, answers.values()))
        decoded = sum(map(len, answers.values())) - before
        return answers, (time.monotonic_ns() - begun_ns) / 1e9 / max(1, decoded)

    def of_steps(self, drafts: int) -> str:
        """Milliseconds of a step that checks so many."""
        engine, machine = zip(*self.spent.get(drafts, [(0.0, 0.0)]), strict=True)
        return (
            f"{statistics.median(engine) * 1e3:.2f} ms in the engine and "
            f"{statistics.median(machine) * 1e3:.2f} in the machine"
        )


def served(proposer: Proposers, wishes: argparse.Namespace) -> Measured:
    options = ServeOptions(
        speculation=proposer,
        speculation_adaptive=not wishes.always,
        speculation_branches=wishes.branches if proposer in BRANCHING else 1,
        speculation_tokens=wishes.tokens,
        quantization=wishes.quantization,
        kv_cache_memory="256MiB",
        max_num_seqs=16,
        steps_in_flight=0,
    )
    planned = plan_model(None, options)
    plan = planned.plan
    decoder = load_model(planned, options, plan.threads)
    kv = KvStore(plan.layout, plan.worker.block_count, plan.device)
    engine = Engine(
        decoder,
        kv,
        plan.slots,
        threads=plan.threads,
        make_proposer=proposer_maker(planned, options, plan.threads),
    )
    return Measured(WorkerMachine(plan.worker), engine)


def prompt_of(task: Task, text: TextModel) -> tuple[int, ...]:
    assert text.chat is not None
    options = ChatOptions(add_generation_prompt=True)
    prompt = text.chat.render(list(task.messages), list(task.tools), options)
    return tuple(text.tokenizer.encode(prompt, add_special_tokens=False))


def requests_of(
    suite: str, count: int, text: TextModel, temperature: float, name: str
) -> list[Request]:
    (chosen,) = choose_suites(suite)
    tasks = make_tasks(chosen, count, 7, scaled_counter(1.5))
    ends = tuple(text.tokenizer.end_token_ids)
    return [
        Request(
            f"{name}-{number}",
            prompt_of(task, text),
            SamplingParameters(
                temperature=temperature,
                seed=number,
                max_tokens=ANSWER_TOKENS,
                stop_token_ids=ends,
            ),
        )
        for number, task in enumerate(tasks)
    ]


def same_answers(found: dict[str, list[int]], expected: dict[str, list[int]], who: str) -> None:
    """Speculation changes no token."""
    if found != expected:
        differing = [name for name in expected if found[name] != expected[name]]
        raise SystemExit(f"{who}: {len(differing)} answers differ, the first of {differing[0]}")


def mini_table(sequences: int, wishes: argparse.Namespace, console: Console) -> None:
    """Each proposer on each kind of answer; the medians over rounds of ratios within a round."""
    proposers = [name for name in PROPOSERS if name in wishes.proposers.split(",")]
    ways = {name: served(name, wishes) for name in ("none", *proposers)}
    text = TextModel.load(BUNDLED_MODEL)
    title = (
        f"tandem-mini, {sequences} at once: tokens a second, and times those of the plain engine"
    )
    table = Table(title=title)
    for column in ("", "temperature", "plain", *proposers):
        table.add_column(column, justify="right")
    for suite in SUITES:
        for temperature in (0.0, 0.8):
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            for round_number in range(wishes.rounds):
                asked = requests_of(
                    suite,
                    max(sequences, wishes.tasks),
                    text,
                    temperature,
                    f"{suite}-{round_number}",
                )
                answers: dict[str, dict[str, list[int]]] = {name: {} for name in ways}
                # Nobody is always the first: what a round begins with may be faster or slower.
                names = deque(ways)
                names.rotate(round_number)
                for name in names:
                    spent = 0.0
                    groups = range(0, len(asked), sequences)
                    for first in groups:
                        some, token_s = ways[name].run(asked[first : first + sequences])
                        answers[name] |= some
                        spent += token_s / len(groups)
                    seconds[name].append(spent)
                for name in proposers:
                    same_answers(answers[name], answers["none"], name)
            plain = seconds["none"]
            cells = []
            for name in proposers:
                ratios = [one / other for one, other in zip(plain, seconds[name], strict=True)]
                cells.append(
                    f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
                )
            rate = 1 / statistics.median(plain)
            table.add_row(suite, f"{temperature:g}", f"{rate:,.0f}", *cells)
    console.print(table)
    if sequences == 1:
        console.print(f"a plain step: {ways['none'].of_steps(0)}")
    for name in proposers:
        if sequences == 1:
            most = max(ways[name].spent)
            console.print(f"{name}, a step of {most} drafts: {ways[name].of_steps(most)}")
        drafting = ways[name].machine.drafting
        assert drafting is not None
        counts = drafting.totals
        kept = counts.accepted_tokens / max(1, counts.draft_tokens)
        console.print(
            f"{name}: {counts.draft_tokens:,} draft tokens checked, {kept:.0%} kept, "
            f"{1 + counts.accepted_tokens / max(1, counts.drafts):.2f} tokens a row with drafts; "
            f"rows without because these cost more than they bring: {counts.declined:,}"
        )


def cost_table(console: Console) -> None:
    """A step that checks k drafts a sequence, beside one that checks none."""
    kernels, _ = choose_kernels(torch.device("cpu"), torch.float32, allow_native=True)
    decoder = load(HALF_BILLION, "bfloat16", kernels, None)
    table = Table(title="0.5B shape: milliseconds of a step by drafts a sequence (times none)")
    for column in ("sequences", *WAYS_TO_DRAFT):
        table.add_column(column, justify="right")
    for sequences in (1, 4, 16):
        taken = step_seconds(decoder, sequences)
        medians = {way: statistics.median(seconds) for way, seconds in taken.items()}
        plain = medians["none"]
        cells = [f"{each * 1e3:.1f} ({each / plain:.2f})" for each in medians.values()]
        table.add_row(str(sequences), *cells)
    console.print(table)


def step_seconds(decoder: Decoder, sequences: int) -> dict[str, list[float]]:
    """Steps in which sequences of about 128 tokens check drafts, one way to draft after the other,
    again and again. Nobody handed out blocks for these: they lie in others', and only times count.
    """
    rig = Rig.around(decoder, sequences, max(sequences * 16, CONTEXT_TOKENS // BLOCK_SIZE))
    sampling = SamplingParameters(temperature=0.0, max_tokens=1 + STEPS * len(WAYS_TO_DRAFT))
    prompts = [tuple(range(1 + number, 129 + number)) for number in range(sequences)]
    taken: dict[str, list[float]] = {way: [] for way in WAYS_TO_DRAFT}
    ways = cycle(WAYS_TO_DRAFT.items())

    def run(plan: StepPlan) -> StepResult:
        if plan.batched_tokens > sequences or len(plan.slots) < sequences:
            return rig.engine.run(plan)
        way, parents = next(ways)
        if parents:
            drafts = len(parents)
            plan = structs.replace(
                plan,
                counts=plan.counts + np.int32(drafts),
                draft_counts=np.full(sequences, drafts, np.int32),
                draft_tokens=np.full(sequences * drafts, 7, np.int32),
                draft_parents=np.tile(np.array(parents, np.int32), sequences),
            )
        start = time.perf_counter()
        result = rig.engine.run(plan)
        taken[way].append(time.perf_counter() - start)
        counts = result.token_counts or (1,) * sequences
        firsts = np.cumsum(counts) - counts
        return StepResult(plan.step_id, tuple(result.tokens[first] for first in firsts.tolist()))

    rig.answer([Request(str(n), p, sampling) for n, p in enumerate(prompts)], run)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--branches", type=int, default=1)
    parser.add_argument("--always", action="store_true")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--proposers", default=",".join(PROPOSERS[1:]))
    parser.add_argument("--sequences", default="1,16")
    parser.add_argument("--only", choices=("mini", "cost"))
    wishes = parser.parse_args()
    console = Console(width=120)
    if wishes.only != "cost":
        for sequences in map(int, wishes.sequences.split(",")):
            mini_table(sequences, wishes, console)
    if wishes.only != "mini":
        cost_table(console)


if __name__ == "__main__":
    main()

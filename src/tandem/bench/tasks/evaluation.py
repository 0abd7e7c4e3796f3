"""The suites of `tandem eval`: asks a chat model their tasks and counts what it got right."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from tandem.bench.tasks.arithmetic import arithmetic
from tandem.bench.tasks.chat import ChatModel, ChatReply
from tandem.bench.tasks.fluency import fluency, is_fluent
from tandem.bench.tasks.recall import CountTokens, recall
from tandem.bench.tasks.task import Task, last_answer, score
from tandem.bench.tasks.tool_call import tool_call
from tandem.facts.errors import InvalidConfiguration, TandemError
from tandem.facts.sampling import SamplingParameters

Make = Callable[[Random, CountTokens], Task]


@dataclass(frozen=True)
class Suite:
    """Tasks of one kind. `target` is the share of right replies that the bundled model is to reach;
    with several `votes`, that many replies are drawn and the most frequent answer counts."""

    name: str
    target: float | None
    samples: int
    max_tokens: int
    make: Make
    votes: int = 1
    temperature: float = 0.0


def _recall(context_tokens: int) -> Make:
    return lambda rng, count_tokens: recall(rng, context_tokens, count_tokens)


SUITES: tuple[Suite, ...] = (
    Suite("recall-1k", 0.97, 100, 32, _recall(1000)),
    Suite("recall-2k", 0.90, 100, 32, _recall(2000)),
    Suite("recall-4k", None, 50, 32, _recall(4000)),
    Suite("arithmetic", 0.60, 200, 200, lambda rng, _: arithmetic(rng)),
    Suite(
        "arithmetic-vote", 0.70, 100, 200, lambda rng, _: arithmetic(rng), votes=8, temperature=0.8
    ),
    Suite("tool-call", 0.98, 100, 160, lambda rng, _: tool_call(rng)),
    Suite("fluency", 0.90, 50, 96, lambda rng, _: fluency(rng), temperature=0.7),
)


def choose_suites(names: str | None, flag: str = "--tasks") -> list[Suite]:
    """Those named in a list as `recall-1k,arithmetic`, or all. Raises `InvalidConfiguration`, which
    names the flag that has the list."""
    if names is None:
        return list(SUITES)
    by_name = {suite.name: suite for suite in SUITES}
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        if name not in by_name:
            raise InvalidConfiguration(f"{flag} knows {', '.join(by_name)}, not {name!r}")
    if not chosen:
        raise InvalidConfiguration(f"{flag} needs at least one of {', '.join(by_name)}")
    return [by_name[name] for name in chosen]


def make_tasks(suite: Suite, count: int, seed: int, count_tokens: CountTokens) -> list[Task]:
    """The same tasks for the same seed; each has its own stream, so more samples keep the first."""
    return [
        suite.make(Random(f"{suite.name} {seed} {number}"), count_tokens) for number in range(count)
    ]


def scaled_counter(tokens_per_piece: float) -> CountTokens:
    """Token counts without asking for each line: words, numbers and marks, times what a tokenizer
    makes of one on average."""
    return partial(_scaled_count, tokens_per_piece)


def count_pieces(text: str) -> int:
    """Words, numbers, marks and line ends."""
    return len(re.findall(r"\w+|[^\w\s]|\n", text))


def _scaled_count(tokens_per_piece: float, text: str) -> float:
    return count_pieces(text) * tokens_per_piece


_Z_95 = 1.959964
_CALIBRATION_TOKENS = 700


@dataclass(frozen=True)
class EvaluationSettings:
    """`samples` None keeps each suite's own number of tasks."""

    suites: Sequence[Suite]
    samples: int | None = None
    seed: int = 0
    concurrency: int = 8


@dataclass(frozen=True)
class Judged:
    """One task and how it went; `error` is empty unless no reply came."""

    task: Task
    replies: tuple[str, ...]
    right: bool
    prompt_tokens: int = 0
    error: str = ""


@dataclass(frozen=True)
class SuiteScore:
    """The share of right replies and its 95 % Wilson interval; a task without a reply is wrong."""

    suite: Suite
    judged: tuple[Judged, ...]

    @property
    def right(self) -> int:
        return sum(entry.right for entry in self.judged)

    @property
    def share(self) -> float:
        return self.right / len(self.judged)

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(self.right, len(self.judged))

    @property
    def failures(self) -> dict[str, int]:
        return dict(Counter(entry.error for entry in self.judged if entry.error))


def wilson_interval(right: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927), sensible also near 0 and 1 and for few."""
    share, weight = right / count, _Z_95**2 / count
    centre = (share + weight / 2) / (1 + weight)
    spread = _Z_95 / (1 + weight) * (share * (1 - share) / count + weight / (4 * count)) ** 0.5
    return max(0.0, centre - spread), min(1.0, centre + spread)


async def evaluate(
    model: ChatModel,
    settings: EvaluationSettings,
    on_judged: Callable[[Suite], None] = lambda _: None,
) -> list[SuiteScore]:
    """All suites one after the other, `concurrency` chats at once within one."""
    count_tokens = await calibrate(model)
    scores = []
    for suite in settings.suites:
        tasks = make_tasks(suite, settings.samples or suite.samples, settings.seed, count_tokens)
        slots = asyncio.Semaphore(settings.concurrency)
        async with asyncio.TaskGroup() as group:
            running = []
            for number, task in enumerate(tasks):
                # Seeds differ by task, suite samples stay reproducible.
                asking = _Asking(model, suite, task_seed(settings.seed, number), slots)
                running.append(group.create_task(_judge(asking, task, on_judged)))
        scores.append(SuiteScore(suite, tuple(task.result() for task in running)))
    return scores


def task_seed(seed: int, number: int) -> int:
    """The sampling seed of a suite's n-th task; votes count on from it."""
    return seed * 1_000_003 + number * 101


async def calibrate(model: ChatModel) -> CountTokens:
    """A token counter for the lines of the recall lists, from one sample of them."""
    sample = recall(Random(0), _CALIBRATION_TOKENS, scaled_counter(1.0))
    lines = str(sample.messages[0]["content"])
    return scaled_counter(await model.count_tokens(lines) / count_pieces(lines))


@dataclass(frozen=True)
class _Asking:
    """How one task is asked."""

    model: ChatModel
    suite: Suite
    seed: int
    slots: asyncio.Semaphore

    async def reply(self, task: Task, vote: int) -> ChatReply:
        sampling = SamplingParameters(
            temperature=self.suite.temperature,
            max_tokens=self.suite.max_tokens,
            seed=self.seed + vote,
        )
        async with self.slots:
            return await self.model.complete_chat(task.messages, task.tools, sampling)


async def _judge(asking: _Asking, task: Task, on_judged: Callable[[Suite], None]) -> Judged:
    votes = range(asking.suite.votes)
    try:
        replies = await asyncio.gather(*(asking.reply(task, vote) for vote in votes))
    except TandemError as error:
        judged = Judged(task, (), False, error=str(error))
    else:
        texts = tuple(reply.text for reply in replies)
        judged = Judged(task, texts, is_right(task, replies), replies[0].prompt_tokens)
    on_judged(asking.suite)
    return judged


def is_right(task: Task, replies: Sequence[ChatReply]) -> bool:
    """Whether the reply, or the majority of several, is right."""
    reply = replies[0]
    if len(replies) > 1:
        reply = replace(reply, text=majority([reply.text for reply in replies]))
    if task.kind == "fluency":
        return is_fluent(reply.text)
    return score(task, reply.text, reply.tool_calls)


def majority(texts: Sequence[str]) -> str:
    """The first text that gives the most frequent last answer; the earlier answer wins a tie."""
    answers = [last_answer(text) for text in texts]
    counted = Counter(answer for answer in answers if answer is not None)
    if not counted:
        return texts[0]
    # most_common keeps the order of first appearance among equals.
    return texts[answers.index(counted.most_common(1)[0][0])]

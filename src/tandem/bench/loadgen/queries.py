"""The sample library that LoadGen draws from: each sample is one HTTP request, made when asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tandem.bench.load import CHAT_PATH, Asker
from tandem.bench.tasks.chat import ChatReply, chat_body
from tandem.bench.tasks.evaluation import Judged, Suite, SuiteScore, is_right, task_seed
from tandem.bench.tasks.task import Task
from tandem.bench.workload import PlannedRequest
from tandem.facts.sampling import SamplingParameters


class Queries(Protocol):
    """Samples by their index, from 0."""

    @property
    def path(self) -> str: ...

    def __len__(self) -> int: ...

    def body(self, index: int) -> dict[str, Any]:
        """The same each time."""
        ...

    def lengths(self, index: int) -> tuple[int, int]:
        """Tokens of the prompt (0: not known before), and of the longest answer."""
        ...


@dataclass(frozen=True)
class WorkloadQueries:
    """The requests of a planned workload. Beside `Queries`."""

    asker: Asker
    path: str
    requests: Sequence[PlannedRequest]

    def __len__(self) -> int:
        return len(self.requests)

    def body(self, index: int) -> dict[str, Any]:
        return self.asker.body(self.requests[index])

    def lengths(self, index: int) -> tuple[int, int]:
        request = self.requests[index]
        return request.prompt_tokens, request.output_tokens


@dataclass(frozen=True)
class TaskQueries:
    """The tasks of suites of `tandem eval`, one after the other. Beside `Queries`."""

    model: str
    seed: int
    tasks: Sequence[tuple[Suite, Sequence[Task]]]
    path: str = CHAT_PATH

    def __len__(self) -> int:
        return sum(len(tasks) for _, tasks in self.tasks)

    def body(self, index: int) -> dict[str, Any]:
        suite, number, task = self._find(index)
        sampling = SamplingParameters(
            temperature=suite.temperature,
            max_tokens=suite.max_tokens,
            seed=task_seed(self.seed, number),
        )
        body = chat_body(self.model, task.messages, task.tools, sampling)
        return {**body, "return_token_ids": True}

    def lengths(self, index: int) -> tuple[int, int]:
        return 0, self._find(index)[0].max_tokens

    def judge(self, texts: Sequence[str | None]) -> list[SuiteScore]:
        """By the text of each sample's answer; None where there is none."""
        scores, first = [], 0
        for suite, tasks in self.tasks:
            replies = texts[first : first + len(tasks)]
            first += len(tasks)
            judged = tuple(map(_judged, tasks, replies))
            scores.append(SuiteScore(suite, judged))
        return scores

    def _find(self, index: int) -> tuple[Suite, int, Task]:
        for suite, tasks in self.tasks:
            if index < len(tasks):
                return suite, index, tasks[index]
            index -= len(tasks)
        raise IndexError(index)


def _judged(task: Task, text: str | None) -> Judged:
    if text is None:
        return Judged(task, (), False, error="the accuracy log has no answer")
    return Judged(task, (text,), is_right(task, [ChatReply(text)]))

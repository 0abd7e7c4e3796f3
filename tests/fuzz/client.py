"""One client that fuzzes until its time is over: the schema's cases and spoilt bodies by turns."""

import random
import time
from typing import Any

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from tests.fuzz.batches import BatchFuzzer
from tests.fuzz.spoilt import spoilt
from tests.fuzz.tally import Tally

# An answer may have to wait for those of others, and be as long as the context.
ANSWER_S = 60.0
EXAMPLES = 10
SPOILT = 10
# What is drawn as the name of a model is none.
SERVED = {"model": "tandem-mini", "version": "1"}


class Client:
    """Calls `url` with what `seed` draws, and books it in `tally`."""

    def __init__(self, url: str, seed: int, tally: Tally) -> None:
        self._url = url
        self._seed = seed
        self._tally = tally
        self._session = requests.Session()
        self._session.trust_env = False

    def run(self, until_s: float) -> None:
        """Until `time.monotonic()` says so, or a little longer."""
        schema = schemathesis.openapi.from_url(f"{self._url}/openapi.json")
        operations = [result.ok() for result in schema.get_all_operations()]
        chance = random.Random(self._seed)
        batches = BatchFuzzer(self._url, self._session, self._book)
        # A strategy takes a while to make.
        strategies = [
            (operation, operation.as_strategy(generation_mode=mode))
            for operation in operations
            for mode in GenerationMode
            # Any text is a name: a call without more cannot be wrong.
            if mode is GenerationMode.POSITIVE or operation.body
        ]
        while True:
            for operation, strategy in chance.sample(strategies, len(strategies)):
                if time.monotonic() > until_s:
                    return
                self._by_schema(operation, strategy, chance.randrange(2**32))
                for _ in range(SPOILT):
                    self.call_spoilt(chance)
                if any(each.path == "/v1/batches" for each in operations):
                    batches.call(chance)

    def _by_schema(self, operation: Any, strategy: Any, seed: int) -> None:
        @hypothesis.seed(seed)
        @settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            derandomize=False,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy)
        def one(case: Any) -> None:
            name = f"{operation.method.upper()} {operation.path}"
            if seed % 2 and "model" in case.path_parameters:
                case.path_parameters |= SERVED
            self._book(name, lambda: case.call(session=self._session, timeout=ANSWER_S))

        one()

    def call_spoilt(self, chance: random.Random) -> None:
        """One call with a spoilt body."""
        path, headers, body = spoilt(chance)
        self._book(
            f"POST {path} spoilt",
            lambda: self._session.post(
                self._url + path, data=body, headers=headers, timeout=ANSWER_S
            ),
        )

    def _book(self, operation: str, call: Any) -> Any:
        """The answer, if one came."""
        try:
            answer = call()
        except requests.RequestException as error:
            self._tally.broke(operation, error)
            return None
        self._tally.answered(operation, getattr(answer, "_response", answer))
        return answer

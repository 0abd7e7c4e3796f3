"""App context: what every handler needs, made once. The generator, its text model, the limits."""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import version

from starlette.requests import Request

from tandem.api.auth import (
    ANSWER_HEADERS,
    BACKGROUND,
    KEY,
    TENANT,
    TRACE,
    account_of,
    is_printable,
)
from tandem.api.call_metrics import CallMetrics
from tandem.api.choice import Endings
from tandem.api.config import ApiConfig
from tandem.api.errors import REQUEST_ID, Refusal, Refused, retry_header
from tandem.api.intake import HeldBytes, Intake
from tandem.api.rate_limit_headers import rate_limit_headers
from tandem.api.response_cache import CacheUse, ResponseCache
from tandem.api.response_store import ResponseStore
from tandem.api.whole_response import ResponseBudget
from tandem.facts.adapter import Adapter
from tandem.facts.encoding import Encoders
from tandem.facts.errors import EngineFailed
from tandem.facts.request import LONGEST_DEADLINE_S
from tandem.facts.serving import AdapterModels, Caller, Generator
from tandem.facts.tracing import TraceContext
from tandem.text.model import TextModel

VERSION = version("tandem")
SYSTEM_FINGERPRINT = f"tandem-{VERSION}"
# Calls of one session go on from each other; what a call leaves in the cache may be asked to be
# kept for so many seconds.
SESSION_HEADER = "X-Tandem-Session"
PIN_HEADER = "X-Tandem-Pin"
SESSION_CHARS = 128
# Within what time the whole answer is wanted.
TIMEOUT_HEADER = "X-Request-Timeout"


@dataclass(frozen=True, slots=True)
class AppContext:
    """Nothing here changes while the server runs. `adapters` and `encoders` are None where there
    are none."""

    generator: Generator
    text: TextModel
    config: ApiConfig
    intake: Intake
    response_budget: ResponseBudget
    response_cache: ResponseCache
    response_store: ResponseStore
    calls: CallMetrics
    adapters: AdapterModels | None = None
    encoders: Encoders | None = None

    def caller_of(self, request: Request) -> Caller:
        """Who sent this, as far as their key and headers say. Raises `Refused` with 400 for a
        header that means nothing."""
        headers = request.headers
        session = headers.get(SESSION_HEADER, "")
        if not is_printable(session, SESSION_CHARS):
            problem = f"{SESSION_HEADER} must be at most {SESSION_CHARS} printable ASCII characters"
            raise Refused(Refusal(400, problem, "invalid_value", SESSION_HEADER))
        pin_s = _seconds(headers.get(PIN_HEADER, "0"))
        if pin_s is None:
            problem = f"{PIN_HEADER} must be a number of seconds, such as 120"
            raise Refused(Refusal(400, problem, "invalid_value", PIN_HEADER))
        deadline_s = _seconds(headers.get(TIMEOUT_HEADER, "0"))
        if deadline_s is None or deadline_s > LONGEST_DEADLINE_S:
            problem = (
                f"{TIMEOUT_HEADER} must be a number of seconds up to {LONGEST_DEADLINE_S:.0f}, "
                "such as 30"
            )
            raise Refused(Refusal(400, problem, "invalid_value", TIMEOUT_HEADER))
        scope = request.scope
        trace: TraceContext | None = scope.get(TRACE)
        return Caller(
            tenant=scope.get(TENANT, ""),
            headers=headers,
            session=session,
            pin_s=pin_s,
            deadline_s=deadline_s,
            key=scope.get(KEY, ""),
            call_id=scope.get(REQUEST_ID, ""),
            background=scope.get(BACKGROUND, False),
            trace=trace if trace is not None and trace.sampled else None,
        )

    def cache_use(
        self, request: Request, caller: Caller, endings: Endings, *, is_certain: bool
    ) -> CacheUse:
        """How a call uses the response cache: as its tenant has opted in, where its tokens are
        certain, and as its `Cache-Control` says (`no-cache`: computed anew; `no-store`: not kept
        either)."""
        serves = is_certain and self.response_cache.serves(caller)
        control = request.headers.get("Cache-Control", "").lower() if serves else ""
        wishes = {each.strip() for each in control.split(",")}
        return CacheUse(
            self.response_cache,
            self.generator,
            looks_up=serves and wishes.isdisjoint(("no-cache", "no-store")),
            keeps=serves and "no-store" not in wishes,
            endings=endings,
        )

    def no_cache_use(self) -> CacheUse:
        """Every answer is computed, and none is kept."""
        return CacheUse(self.response_cache, self.generator, looks_up=False, keeps=False)

    def add_limit_headers(self, request: Request, caller: Caller) -> None:
        """From now on the answer says what the caller's rate limits leave when it begins."""

        def headers() -> dict[str, str]:
            allowance = self.generator.allowance(caller.account)
            return {} if allowance is None else rate_limit_headers(allowance)

        request.scope[ANSWER_HEADERS] = headers

    def holding_body(self, request: Request) -> AbstractContextManager[HeldBytes]:
        """What the body of this call holds while it is read, of its account's share."""
        return self.intake.holding_body(account_of(request.scope), gives_way=True)

    def check_model(self, model: str | None) -> None:
        """Raises `Refused` with 404 for a model not served here; no model means the only one."""
        names = self.generator.card.names
        if model is not None and model not in names and self.adapter_of(model) is None:
            message = f"the model {model[:128]!r} does not exist; this server has {names[0]!r}"
            raise Refused(Refusal(404, message, "model_not_found", "model"))

    def adapter_of(self, model: str | None) -> Adapter | None:
        """The adapter that is served as this model; None for the model itself."""
        if self.adapters is None or model is None or model in self.generator.card.names:
            return None
        found = self.adapters.named(model)
        return None if found is None else found.adapter

    def check_ready(self, model: str | None) -> None:
        """As `check_model`, and 503 while nothing can run."""
        self.check_model(model)
        if self.generator.failed:
            # Without Retry-After: waiting does not help.
            raise EngineFailed("the engine failed; the server must be restarted")
        if not self.generator.ready:
            refusal = Refusal(503, "the model is not ready", "not_ready", headers=retry_header())
            raise Refused(refusal)


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None

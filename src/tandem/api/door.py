"""What every call needs: the generator behind the door, its text model and the limits."""

from dataclasses import dataclass
from importlib.metadata import version

from starlette.requests import Request

from tandem.api.config import ApiConfig
from tandem.api.guard import TENANT
from tandem.api.refusal import Refusal, Refused
from tandem.facts.errors import EngineFailed
from tandem.facts.serving import Caller, Generator
from tandem.text.model import TextModel

VERSION = version("tandem")
SYSTEM_FINGERPRINT = f"tandem-{VERSION}"


@dataclass(frozen=True, slots=True)
class FrontDoor:
    """Nothing here changes while the server runs."""

    generator: Generator
    text: TextModel
    config: ApiConfig

    def caller_of(self, request: Request) -> Caller:
        """Who sent this, as far as their key and headers say."""
        return Caller(request.scope.get(TENANT, ""), request.headers)

    def check_model(self, model: str | None) -> None:
        """Raises `Refused` with 404 for a model not served here; no model means the only one."""
        names = self.generator.card.names
        if model is not None and model not in names:
            message = f"the model {model[:128]!r} does not exist; this server has {names[0]!r}"
            raise Refused(Refusal(404, message, "model_not_found", "model"))

    def admit(self, model: str | None) -> None:
        """As `check_model`, and 503 while nothing can run."""
        self.check_model(model)
        if self.generator.failed:
            # Without Retry-After: waiting does not help.
            raise EngineFailed("the engine failed; the server must be restarted")
        if not self.generator.ready:
            headers = {"Retry-After": "1"}
            raise Refused(Refusal(503, "the model is not ready", "not_ready", headers=headers))

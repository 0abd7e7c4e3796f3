"""What every call needs: the generator behind the door, its text model and the limits."""

from dataclasses import dataclass
from importlib.metadata import version

from tandem.api.config import ApiConfig
from tandem.api.refusal import Refusal, Refused
from tandem.facts.serving import Generator
from tandem.text.model import TextModel

VERSION = version("tandem")
SYSTEM_FINGERPRINT = f"tandem-{VERSION}"


@dataclass(slots=True)
class FrontDoor:
    """`engine_failed` remembers that a call met a dead engine; a ready generator clears it."""

    generator: Generator
    text: TextModel
    config: ApiConfig
    engine_failed: bool = False

    @property
    def healthy(self) -> bool:
        return self.generator.ready or not self.engine_failed

    def check_model(self, model: str | None) -> None:
        """Raises `Refused` with 404 for a model not served here; no model means the only one."""
        names = self.generator.card.names
        if model is not None and model not in names:
            message = f"the model {model[:128]!r} does not exist; this server has {names[0]!r}"
            raise Refused(Refusal(404, message, "model_not_found", "model"))

    def admit(self, model: str | None) -> None:
        """As `check_model`, and 503 while nothing can run."""
        self.check_model(model)
        if not self.generator.ready:
            headers = {"Retry-After": "1"}
            raise Refused(Refusal(503, "the model is not ready", "not_ready", headers=headers))

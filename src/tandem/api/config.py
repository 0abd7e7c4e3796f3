"""What the operator decides about the front door."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tandem.facts.errors import InvalidConfiguration


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """Limits and access of the HTTP server.

    No `api_keys` means open to everyone; `tenants` says whose some of them are, by key.
    `max_choices` bounds the sequences that one call starts
    (prompts times n). `allowed_origins` are the web pages that may call from a browser.
    """

    api_keys: tuple[str, ...] = ()
    tenants: Mapping[str, str] = field(default_factory=dict)
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 32 << 20
    max_nesting: int = 64
    max_choices: int = 64
    body_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_nesting", "max_choices", "body_timeout_s"):
            if getattr(self, name) <= 0:
                raise InvalidConfiguration(f"api.{name} must be positive")
        for key in (*self.api_keys, *self.tenants):
            if not key or not key.isascii() or key != key.strip():
                raise InvalidConfiguration("api.api_keys must be plain ASCII without blank edges")

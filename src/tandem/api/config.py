"""Configuration of the API server: its limits, and who may call it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tandem.facts.errors import InvalidConfiguration


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What strangers may cost before anybody asks for a key.

    A request head has at most `head_bytes` and `head_fields`, and is complete `head_timeout_s`
    after the connection was made or its last answer ended. `connections` at the same time, 0: as
    many as the process may have files, less a reserve, and 8,192 at most;
    `connections_per_address` of them from one client address, 0: a quarter. Where there are no
    more, one that has owed its head for `gives_way_s` gives way to a newcomer.
    """

    head_bytes: int = 64 << 10
    head_fields: int = 100
    head_timeout_s: float = 10.0
    connections: int = 0
    connections_per_address: int = 0
    gives_way_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("head_bytes", "head_fields", "head_timeout_s", "gives_way_s"):
            if getattr(self, name) <= 0:
                raise InvalidConfiguration(f"api.{name} must be positive")
        for name in ("connections", "connections_per_address"):
            if getattr(self, name) < 0:
                raise InvalidConfiguration(f"api.{name} must not be negative")


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A file with API keys, one a line, which is read again when it changes; they are those of
    `tenant`, or of nobody in particular."""

    path: str
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class ResponseCacheConfig:
    """Answers of `limit_bytes` are kept in all (0: none), of callers of these `tenants` (None: of
    everybody)."""

    limit_bytes: int = 0
    tenants: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class ResponseStoreConfig:
    """Responses that later calls may go on from: at most `limit_bytes` of them (0: none are kept)
    and `limit_responses`, each until nobody has used it for `lifetime_s`."""

    limit_bytes: int = 64 << 20
    limit_responses: int = 10_000
    lifetime_s: float = 24 * 3600.0

    def __post_init__(self) -> None:
        if self.limit_bytes < 0:
            raise InvalidConfiguration("api.response_store.limit_bytes must not be negative")
        for name in ("limit_responses", "lifetime_s"):
            if getattr(self, name) <= 0:
                raise InvalidConfiguration(f"api.response_store.{name} must be positive")


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """Files and batches of clients in the folder `directory` (empty: there are none).

    In all it holds `limit_bytes`, `limit_files` and `limit_batches`; a file has at most
    `file_bytes`, a batch `lines`. Both are kept for `lifetime_s`, batches counted from their end.
    At the same time `requests` of all batches run.
    """

    directory: str = ""
    limit_bytes: int = 4 << 30
    limit_files: int = 10_000
    limit_batches: int = 1_000
    file_bytes: int = 200 << 20
    lines: int = 50_000
    lifetime_s: float = 30 * 24 * 3600.0
    requests: int = 16

    def __post_init__(self) -> None:
        for name in (
            "limit_bytes",
            "limit_files",
            "limit_batches",
            "file_bytes",
            "lines",
            "lifetime_s",
            "requests",
        ):
            if getattr(self, name) <= 0:
                raise InvalidConfiguration(f"api.batches.{name} must be positive")


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """Limits and access of the HTTP server.

    No `api_keys` means open to everyone; `tenants` says whose some of them are, by key; more of
    both stand in `key_files`.
    Operators send a key of `operator_key_files`; without them, nobody may do what is theirs alone.
    `max_choices` bounds the sequences that one call starts (prompts times n), `max_scaling_samples`
    those of one with `scaling` (0: there is none).
    `allowed_origins` are the web pages that may call from a browser. `allowed_hosts` are the names
    that the Host header may have, besides addresses in numbers; none means any name.
    `max_body_bytes` None derives the largest body from the context. `answer_bytes` are what the
    answers of all calls that do not stream may hold; one call, half of it. With
    `parse_special_tokens` a client's text in a chat may spell special tokens, as in version 0.4.
    Names of metrics begin with `metrics_prefix` and a colon. The access log has `log_content_bytes`
    of each call's prompts, and as many of its answers.
    """

    api_keys: tuple[str, ...] = ()
    tenants: Mapping[str, str] = field(default_factory=dict)
    key_files: tuple[KeyFile, ...] = ()
    operator_key_files: tuple[KeyFile, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    max_body_bytes: int | None = None
    answer_bytes: int = 256 << 20
    max_nesting: int = 64
    max_choices: int = 64
    max_scaling_samples: int = 32
    body_timeout_s: float = 60.0
    parse_special_tokens: bool = False
    response_cache: ResponseCacheConfig = field(default_factory=ResponseCacheConfig)
    response_store: ResponseStoreConfig = field(default_factory=ResponseStoreConfig)
    batches: BatchConfig = field(default_factory=BatchConfig)
    metrics_prefix: str = "tandem"
    log_content_bytes: int = 0

    def __post_init__(self) -> None:
        for name in (
            "max_body_bytes",
            "answer_bytes",
            "max_nesting",
            "max_choices",
            "body_timeout_s",
        ):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidConfiguration(f"api.{name} must be positive")
        if self.max_scaling_samples < 0:
            raise InvalidConfiguration("api.max_scaling_samples must not be negative")
        for key in (*self.api_keys, *self.tenants):
            check_key(key)

    @property
    def has_keys(self) -> bool:
        """Whether a call needs one."""
        return bool(self.api_keys or self.tenants or self.key_files)

    def body_bytes(self, context_tokens: int) -> int:
        """The largest body: as declared, else room for a full context of escaped text or of token
        ids, and for tools beside it."""
        return self.max_body_bytes or (1 << 20) + 16 * context_tokens


def check_key(key: str) -> None:
    """Raises `InvalidConfiguration` for what could not be sent in a header."""
    if not key or not key.isascii() or key != key.strip():
        raise InvalidConfiguration("api.api_keys must be plain ASCII without blank edges")

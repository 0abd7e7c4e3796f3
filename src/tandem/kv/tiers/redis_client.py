"""A Redis or Valkey server in few round trips, and a circuit breaker that leaves alone one that
does not answer.

The one module that knows the client library, which is not needed unless a link is made.
"""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from tandem.facts.backoff import backoff_s, longest
from tandem.facts.errors import InvalidConfiguration
from tandem.kv.threads import NS_PER_S

SCAN_KEYS: Final = 1000
_SCHEMES: Final = ("redis", "rediss", "unix")
_READ_BYTES: Final = 1 << 16
# What the client library raises beside its own errors at what is no answer of such a server.
_NO_ANSWER: Final = (ValueError, TypeError, AttributeError, LookupError, RecursionError)

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """`url` as redis://[user:password@]host:port/db, or rediss:// for TLS. Stores of one `owner`
    share their blocks, so each process should have its own. At most `capacity_blocks` are found
    again at the start, and it is looked for them for `listing_s`. `password` is asked at every
    connection, in place of one in the URL; it may raise `OSError`.

    A round trip carries about `trip_bytes`: the client library grows slow when it has to collect
    much more. A server that cannot be reached in `connect_s`, or is silent for `silence_s`, is
    left alone for `retry_s`, and longer each time up to `most_retry_s`, spread by `chance`
    (`facts.backoff`). One call goes on for `call_s` at most, plus a round trip."""

    url: str = field(repr=False)
    capacity_blocks: int
    owner: str = ""
    password: Callable[[], str] | None = field(default=None, repr=False)
    trip_bytes: int = 1 << 18
    connect_s: float = 1.0
    silence_s: float = 2.0
    call_s: float = 5.0
    listing_s: float = 10.0
    retry_s: float = 1.0
    most_retry_s: float = 30.0
    chance: Callable[[], float] = longest


class RedisLink:
    """Every verb is one round trip, and gives None where the server did not answer: then `problem`
    is why, and nobody asks it before `objection` has gone."""

    def __init__(self, config: RedisConfig, now_ns: Callable[[], int]) -> None:
        """Does not look whether the server is there. Raises `InvalidConfiguration` without the
        client library, or for a URL that is none."""
        self._client, self._errors = _client(config)
        self._now_ns = now_ns
        self._breaker = Breaker(config.retry_s, config.most_retry_s, chance=config.chance)

    @property
    def problem(self) -> str:
        return self._breaker.problem

    def deadline_ns(self, seconds: float) -> int:
        return self._now_ns() + round(seconds * NS_PER_S)

    def objection(self, deadline_ns: int | None = None) -> str:
        """Why the server is not to be asked now; empty when it is."""
        now_ns = self._now_ns()
        if self._breaker.open(now_ns):
            return self._breaker.problem
        return "redis: took too long" if deadline_ns is not None and now_ns > deadline_ns else ""

    def store(self, values: Sequence[tuple[bytes, bytes]]) -> list[str] | None:
        """Why the server does not take a value under its key; empty for those it took."""

        def ask() -> list[str]:
            pipeline = self._client.pipeline(transaction=False)
            for key, value in values:
                pipeline.set(key, value)
            answers = pipeline.execute(raise_on_error=False)
            return [f"redis: {_line(a)}" if isinstance(a, Exception) else "" for a in answers]

        return self._ask(ask)

    def values(self, keys: Sequence[bytes]) -> list[bytes | None] | None:
        """What lies under the keys; None for each that is missing."""
        # One answer for each is read twice as fast as one for all, which the client collects.
        return self._ask(lambda: self._each(keys, lambda pipeline, key: pipeline.get(key)))

    def beginnings(self, keys: Sequence[bytes], size_bytes: int) -> list[bytes | None] | None:
        """The first bytes of what lies under the keys."""
        end = size_bytes - 1
        return self._ask(
            lambda: self._each(keys, lambda pipeline, key: pipeline.getrange(key, 0, end))
        )

    def scan(self, cursor: int, pattern: bytes) -> tuple[int, list[bytes]] | None:
        """Some of the keys like that, and where to go on; 0 after the last."""

        def ask() -> tuple[int, list[bytes]]:
            following, keys = self._client.scan(cursor, match=pattern, count=SCAN_KEYS)
            return int(following), list(keys)

        return self._ask(ask)

    def unlink(self, keys: Sequence[bytes]) -> int | None:
        """How many of them were there."""
        return self._ask(lambda: int(self._client.unlink(*keys)))

    def close_redis(self) -> None:
        # The client leaves a pool that it was given open.
        self._client.connection_pool.disconnect()

    def _ask(self, question: Callable[[], Answer]) -> Answer | None:
        try:
            answer = question()
        except (self._errors.RedisError, OSError) as error:
            self._breaker.failed(f"redis: {_line(error)}", self._now_ns())
            return None
        except _NO_ANSWER as error:
            # Whatever else comes over this connection answers another question.
            self._client.connection_pool.disconnect()
            self._breaker.failed(f"redis: no answer of a server: {_line(error)}", self._now_ns())
            return None
        self._breaker.worked()
        return answer

    def _each(
        self, keys: Sequence[bytes], command: Callable[[Any, bytes], object]
    ) -> list[bytes | None]:
        """The answers to one command for each key, in one round trip."""
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            command(pipeline, key)
        answers = pipeline.execute(raise_on_error=False)
        for answer in answers:
            # Something that is no text was put there by somebody else: nothing of ours is there.
            if isinstance(answer, Exception) and not str(answer).startswith("WRONGTYPE"):
                raise answer
        return [answer if isinstance(answer, bytes) else None for answer in answers]


def _client(config: RedisConfig) -> tuple[Any, Any]:
    """A client that connects when it is used, and the library's errors."""
    if importlib.util.find_spec("redis") is None:
        raise InvalidConfiguration("tiers.remote.redis needs a client: pip install 'tandem[redis]'")
    library = importlib.import_module("redis")
    retry, backoff = (importlib.import_module(f"redis.{name}") for name in ("retry", "backoff"))
    # Nothing of the URL in the message: there is a password in it.
    forms = "redis://[user:password@]host:port/db, rediss://... or unix://..."
    problem = f"tiers.remote.redis: no URL of a server; expected {forms}"
    try:
        if urlsplit(config.url).scheme not in _SCHEMES:
            raise InvalidConfiguration(problem)
        pool = library.ConnectionPool.from_url(config.url)
    except ValueError:
        raise InvalidConfiguration(problem) from None
    errors = library.exceptions
    pool.connection_kwargs.update(
        socket_connect_timeout=config.connect_s,
        socket_timeout=config.silence_s,
        socket_read_size=_READ_BYTES,
        decode_responses=False,
        # A connection that the server closed meanwhile is no trouble: one try more, over another.
        retry=retry.Retry(backoff.NoBackoff(), 1, (errors.ConnectionError,)),
    )
    if config.password is not None:
        kwargs = pool.connection_kwargs
        # The library takes either these or somebody to ask.
        kwargs.pop("password", None)
        kwargs["credential_provider"] = _Credentials(
            kwargs.pop("username", None), config.password, errors.AuthenticationError
        )
    try:
        # Options in the URL are looked at by the connections: one that is never used.
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, ValueError, errors.RedisError):
        raise InvalidConfiguration(f"{problem}; options as redis-py has them") from None
    return library.Redis(connection_pool=pool), errors


class _Credentials:
    """As the client library asks for them (`redis.credentials.CredentialProvider`)."""

    def __init__(
        self, username: str | None, password: Callable[[], str], refused: type[Exception]
    ) -> None:
        self._username, self._password, self._refused = username, password, refused

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Raises what the library takes for a failed login."""
        try:
            password = self._password()
        except OSError as error:
            raise self._refused(f"its password cannot be read: {error.strerror}") from error
        return (self._username, password) if self._username else (password,)


def _line(error: object) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


class Breaker:
    """After a failure nothing is asked for `retry_s`, twice as long after each further one, up to
    `most_s`; then one try decides."""

    def __init__(
        self, retry_s: float, most_s: float, *, chance: Callable[[], float] = longest
    ) -> None:
        """`chance` spreads these waits (`facts.backoff`)."""
        assert 0 < retry_s <= most_s
        self._retry_s = retry_s
        self._most_s = most_s
        self._chance = chance
        self._failures = 0
        self._again_ns = 0
        self.problem = ""

    def open(self, now_ns: int) -> bool:
        """Whether it is to be left alone by now; `problem` is why."""
        return self._failures > 0 and now_ns < self._again_ns

    def failed(self, problem: str, now_ns: int) -> None:
        wait_s = backoff_s(self._retry_s, self._most_s, self._failures, self._chance())
        self._failures += 1
        self._again_ns = now_ns + round(wait_s * NS_PER_S)
        self.problem = problem

    def worked(self) -> None:
        self._failures = 0
        self.problem = ""

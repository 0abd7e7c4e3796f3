"""Clock and entropy of the API server. Nothing else in `api` asks the system for either."""

import secrets
import time


def fresh_seed() -> int:
    """A seed for a client that named none."""
    return secrets.randbits(64)


def fresh_chance() -> float:
    """A number in [0, 1), for waits that must not all end together."""
    return secrets.randbits(53) / (1 << 53)


def fresh_id(prefix: str) -> str:
    """An identity no other request has, on this server or another."""
    return f"{prefix}{secrets.token_hex(12)}"


def fresh_short_id() -> str:
    """Nine letters and digits: an identity within one conversation."""
    return secrets.token_hex(5)[:9]


def unix_time_s() -> int:
    return int(time.time())


def unix_time_ns() -> int:
    """The same in nanoseconds, for what people read."""
    return time.time_ns()


def monotonic_s() -> float:
    """For intervals."""
    return time.monotonic()


def monotonic_ns() -> int:
    """The same in nanoseconds, as all of the process counts them."""
    return time.monotonic_ns()

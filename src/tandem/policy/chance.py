"""Reproducible random draws: a draw is a function of a seed and of what it is drawn for."""

from hashlib import blake2b

_STEPS = 1 << 53


def draw(seed: int, *key: int | str) -> float:
    """A number in [0, 1), uniform over keys and independent between them: the first 53 bits of
    blake2b over seed and key. The same on every machine and in every process."""
    # The length stands before each part, so that no two keys look alike.
    parts = "".join(f"{len(text)}:{text}" for text in map(str, (seed, *key)))
    digest = blake2b(parts.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / _STEPS

"""The keys that the processes of one cluster know each other by (CurveZMQ, Curve25519)."""

import struct
from typing import NamedTuple

import zmq
from zmq.utils import z85

KEY_BYTES = 32
Z85_CHARS = 40


class KeyPair(NamedTuple):
    """Both halves as Z85 text; the secret one stays with its owner."""

    public: str
    secret: str

    def __repr__(self) -> str:
        # A log line must never carry a secret.
        return f"KeyPair({self.public})"


def make_keys() -> tuple[KeyPair, KeyPair]:
    """Two fresh pairs: the gateways' of a cluster, and one of those who come to them."""
    return make_pair(), make_pair()


def is_public(key: str) -> bool:
    """Whether this text can be a public key."""
    try:
        return len(key) == Z85_CHARS and len(z85.decode(key)) == KEY_BYTES
    except (KeyError, ValueError, OverflowError, struct.error):
        return False


def belong_together(pair: KeyPair) -> bool:
    """Whether the secret half is a key at all, and the public one is its."""
    if not is_public(pair.secret):
        return False
    return zmq.curve_public(pair.secret.encode()) == pair.public.encode()


def make_pair() -> KeyPair:
    """A fresh one."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())

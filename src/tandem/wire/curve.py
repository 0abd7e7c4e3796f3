"""The keys that the processes of one cluster know each other by (CurveZMQ, Curve25519)."""

from typing import NamedTuple

import zmq


class KeyPair(NamedTuple):
    """Both halves as Z85 text; the secret one stays with its owner."""

    public: str
    secret: str

    def __repr__(self) -> str:
        # A log line must never carry a secret.
        return f"KeyPair({self.public})"


def make_keys() -> tuple[KeyPair, KeyPair]:
    """Fresh pairs of a cluster: the gateways', and the one of its workers and operators."""
    return _pair(), _pair()


def _pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())

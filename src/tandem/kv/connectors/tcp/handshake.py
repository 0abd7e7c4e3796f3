"""How a TCP connection for KV is opened: limits, addresses, and the proofs that both sides exchange
before anything else is said.
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass

from tandem.kv.connectors.contract import ConnectorError
from tandem.kv.connectors.tcp import protocol as frames
from tandem.kv.connectors.tcp.stream import Stream

# The few bytes of a proof come in few calls from whoever means well.
_HANDSHAKE_CALLS = 8


@dataclass(frozen=True, slots=True)
class TcpLimits:
    """Seconds. A connection ends when the other side takes longer: `connect_s` to be reached, and
    for each message before the proofs; `silence_s` within a message; `idle_s` between two
    requests. `connections` are served at once; when there are as many, the oldest of those that
    have not proved anything yet makes room for a new one. Peers only read, unless it is `writable`:
    the pool of a worker never is."""

    connect_s: float = 2.0
    silence_s: float = 5.0
    idle_s: float = 600.0
    connections: int = 256
    writable: bool = False


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where a peer listens, and what to prove to it."""

    peer: str
    address: tuple[str, int]
    credentials: frames.Credentials
    entropy: Callable[[int], bytes]
    limits: TcpLimits


def open_stream(address: PeerAddress, give_up: Callable[[], str], slice_s: float) -> Stream:
    """A new connection over which the proofs have been exchanged. Raises `ConnectorError`."""
    try:
        connection = socket.create_connection(address.address, address.limits.connect_s)
    except OSError as error:
        raise ConnectorError(f"{address.peer} cannot be reached: {error}") from error
    stream = Stream(connection, give_up, slice_s)
    try:
        prove_to_server(stream, address)
    except ConnectorError as error:
        stream.close_stream()
        raise ConnectorError(f"{address.peer} does not answer as it should: {error}") from error
    return stream


def prove_to_server(stream: Stream, address: PeerAddress) -> None:
    """Show the server that the secret is known, and see that it knows it."""
    seconds = address.limits.connect_s
    data = bytearray(frames.GREETING_BYTES)
    stream.receive_bytes([memoryview(data)], seconds, most_calls=_HANDSHAKE_CALLS)
    server_nonce = frames.parse_greeting(bytes(data))
    client_nonce = address.entropy(frames.NONCE_BYTES)
    stream.send_bytes(
        [memoryview(frames.answer(address.credentials, server_nonce, client_nonce))], seconds
    )
    proof = bytearray(frames.PROOF_BYTES)
    stream.receive_bytes([memoryview(proof)], seconds, most_calls=_HANDSHAKE_CALLS)
    frames.check_proof(address.credentials, server_nonce, client_nonce, bytes(proof))


def prove_to_client(
    stream: Stream,
    credentials: frames.Credentials,
    entropy: Callable[[int], bytes],
    limits: TcpLimits,
) -> None:
    """See that whoever has connected knows the secret, and show that it is known here. Raises
    `ConnectorError`."""
    nonce = entropy(frames.NONCE_BYTES)
    stream.send_bytes([memoryview(frames.greeting(nonce))], limits.connect_s)
    data = bytearray(frames.ANSWER_BYTES)
    stream.receive_bytes([memoryview(data)], limits.connect_s, most_calls=_HANDSHAKE_CALLS)
    proof = frames.check_answer(credentials, nonce, bytes(data))
    stream.send_bytes([memoryview(proof)], limits.connect_s)


def listening_socket(host: str, port: int) -> socket.socket:
    """Raises `ConnectorError` when the address is not to be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen()
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise ConnectorError(f"cannot listen at {host}, port {port}: {error}") from error
    return listening

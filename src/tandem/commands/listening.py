"""The listening socket of an HTTP server, and the URL that leads to it."""

import socket

from tandem.facts.errors import InvalidConfiguration


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket; a `shared` port may have several, between which the kernel spreads the
    connections. Raises `InvalidConfiguration` when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise InvalidConfiguration(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another port"
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a client on this machine finds it."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

"""One process of a cluster on a machine of its own: what it is called, and how it finds others."""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from tandem.config.cluster.file import MOST_PORT, name_problem
from tandem.facts.errors import InvalidConfiguration

LONGEST_NAME = 64
POLL_S = 0.5


def process_name(given: str | None) -> str:
    """As given, or this host's: on Kubernetes that is the pod's. Raises `InvalidConfiguration`."""
    # The end of a pod's name tells it from others.
    name = given if given is not None else socket.gethostname()[-LONGEST_NAME:].lstrip("-._")
    if problem := name_problem(name):
        raise InvalidConfiguration(problem)
    return name


def listen_endpoint(listen: str) -> str:
    """Of an address, or address:port, in a cluster file."""
    host, _, port = listen.rpartition(":")
    return f"tcp://{host}:{port}" if host else f"tcp://{listen}:0"


def gateway_endpoints(given: Sequence[str]) -> tuple[str, ...]:
    """As given on the command line, checked. Raises `InvalidConfiguration`."""
    endpoints = []
    for text in given:
        endpoint = text if "://" in text else f"tcp://{text}"
        parts = urlsplit(endpoint)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme != "tcp" or not parts.hostname or not port or port > MOST_PORT:
            raise InvalidConfiguration(
                f"--gateway {text}: expected the address of a gateway as tcp://host:9000"
            )
        endpoints.append(endpoint)
    return tuple(dict.fromkeys(endpoints))


async def until_resolved(endpoints: Sequence[str], limit_s: float) -> None:
    """Until a first name is known: where machines start together, a gateway's may come later.
    Raises `InvalidConfiguration` when it does not."""
    loop = asyncio.get_running_loop()
    names = [urlsplit(endpoint).hostname or "" for endpoint in endpoints]
    end_s = loop.time() + limit_s
    while not await _is_known(names[0]):
        if loop.time() > end_s:
            raise InvalidConfiguration(
                f"--gateway {endpoints[0]}: nobody knew {names[0]} for {limit_s:g} s"
            )
        await asyncio.sleep(POLL_S)


async def _is_known(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
        return True
    except ValueError:
        pass
    try:
        await asyncio.get_running_loop().getaddrinfo(name, None)
    except OSError:
        return False
    return True

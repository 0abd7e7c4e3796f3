"""Where gRPC is spoken, and what is said where it cannot be."""

import importlib.util
import socket

import pytest

from tandem.config.options import ServeOptions
from tandem.facts.errors import InvalidConfiguration
from tandem.live.grpc_port import grpc_port, try_grpc_port


@pytest.mark.parametrize("missing", ["grpc", "google", "google.protobuf"])
def test_packages_that_are_missing_are_one_line(monkeypatch, missing):
    """Nothing is needed where nobody asks for it."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == missing else found(name)
    )
    assert grpc_port(ServeOptions()) is None
    with pytest.raises(InvalidConfiguration) as raised:
        try_grpc_port(ServeOptions(grpc_port=8001))
    assert str(raised.value).endswith("pip install 'tandem[grpc]'")
    assert "\n" not in str(raised.value)


def test_a_port_that_cannot_be_had_is_said_by_its_option(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(InvalidConfiguration, match="choose another --grpc-port"),
    ):
        try_grpc_port(ServeOptions(grpc_port=taken.getsockname()[1]))
    with pytest.raises(InvalidConfiguration, match="another one than --port"):
        try_grpc_port(ServeOptions(port=8001, grpc_port=8001))

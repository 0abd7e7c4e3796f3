"""What the wire refuses."""

from tandem.facts.errors import TandemError


class BadMessage(TandemError):
    """These bytes are no message of ours. Says why, in few words and without their content."""


class OtherProtocol(BadMessage):
    """The sender speaks another version of the protocol, whose number is `protocol`."""

    def __init__(self, protocol: int, ours: int) -> None:
        super().__init__(f"speaks protocol {protocol}, and this process speaks {ours}")
        self.protocol = protocol

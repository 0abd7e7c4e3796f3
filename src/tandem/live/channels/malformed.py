"""What came over a channel and was no message: counted, and told once of each sender."""

import logging

logger = logging.getLogger(__name__)

# A peer may connect under ever new names.
MOST_SENDERS = 1024


class Malformed:
    """`count` messages so far."""

    def __init__(self) -> None:
        self.count = 0
        self._senders: set[str] = set()

    def of(self, sender: str, problem: Exception) -> bool:
        """One more. Whether it is the first of this sender."""
        self.count += 1
        if sender in self._senders or len(self._senders) == MOST_SENDERS:
            return False
        self._senders.add(sender)
        logger.error("a message of %s %s", sender, problem)
        return True

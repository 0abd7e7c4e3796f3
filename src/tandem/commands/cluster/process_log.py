"""What a process of a cluster writes to its log, which is its standard error."""

import logging

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_of_process(level: str) -> None:
    """Messages of others from `level` on. Our own from INFO on at least: how a process started is
    worth a few lines."""
    logging.basicConfig(level=level.upper(), format=FORMAT, force=True)
    ours = logging.getLogger("tandem")
    ours.setLevel(min(logging.INFO, logging.getLogger().level))

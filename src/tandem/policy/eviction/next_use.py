"""When a cached block is expected to be used next: the one scale on which the device's LRU and the
announced returns of paused sessions are compared, so that whatever is wanted last goes first.

After Belady (1966), who evicts what is used furthest in the future; an LRU estimates that from the
past: what has lain unused for so long will probably lie so long again.
"""


def ahead_of_unused_ns(unused_ns: int) -> int:
    """Of a block that nobody announced: as long as it has lain unused."""
    return unused_ns


def ahead_of_return_ns(return_ns: int, now_ns: int) -> int:
    """Of a block whose session is expected back at `return_ns`. An overdue session counts as one
    that has been unused since it was due: it is kept a while, then let go."""
    return abs(return_ns - now_ns)

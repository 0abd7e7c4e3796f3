"""How a linear layer is cut into work items, and how many threads it is worth."""

# A block's tile of partial sums (256 bytes a row) should stay in the second-level cache.
MOST_ROWS = 384
LEAST_ROWS = 48
ITEMS_A_THREAD = 6
# Waking another thread costs some microseconds: as much as half a million multiply-adds.
THREAD_MULTIPLY_ADDS = 1 << 19


def choose_block_rows(rows: int, panels: int, threads: int) -> int:
    """Large blocks reuse a widened panel more often; enough items keep all threads busy."""
    wanted_items = ITEMS_A_THREAD * threads if threads > 1 else 1
    blocks = max(-(-rows // MOST_ROWS), -(-wanted_items // panels))
    return max(LEAST_ROWS, -(-rows // blocks))


def choose_threads(multiply_adds: int, threads: int) -> int:
    return max(1, min(threads, multiply_adds // THREAD_MULTIPLY_ADDS))

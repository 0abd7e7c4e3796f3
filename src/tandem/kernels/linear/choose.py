"""How many rows one work item of a large product takes."""

# A block's tile of partial sums (256 bytes a row) should stay in the second-level cache.
MOST_ROWS = 384
LEAST_ROWS = 48
ITEMS_A_THREAD = 6


def choose_block_rows(rows: int, panels: int, threads: int) -> int:
    """Large blocks reuse a widened panel more often; enough items keep all threads busy."""
    wanted_items = ITEMS_A_THREAD * threads if threads > 1 else 1
    blocks = max(-(-rows // MOST_ROWS), -(-wanted_items // panels))
    return max(LEAST_ROWS, -(-rows // blocks))

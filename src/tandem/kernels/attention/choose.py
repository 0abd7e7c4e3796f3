"""How many queries share one tile of attention."""

# Rows (queries times heads of a group) that repay the transposition of the keys.
TILE_ROWS = 120


def choose_tile_tokens(heads_a_group: int) -> int:
    return max(1, TILE_ROWS // heads_a_group)

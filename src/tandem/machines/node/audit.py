"""Which law is broken, in words, for an auditor who must go on living."""

from collections.abc import Callable


def first_broken_law(audit: Callable[[], None]) -> str:
    """Where the audit failed; empty when it did not."""
    try:
        audit()
    except AssertionError as broken:
        place = broken.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = "" if place is None else f"{place.tb_frame.f_code.co_qualname}:{place.tb_lineno}"
        return f"an invariant does not hold at {where} {broken}".strip()
    return ""

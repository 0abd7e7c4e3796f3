"""Invariants that auditors check, in running processes too: errors of a type of their own, because
Python leaves `assert` out where it runs with -O."""

from collections.abc import Callable


class InvariantBroken(AssertionError):
    """The state of a machine contradicts itself; the text is the law that does not hold."""


def invariant(holds: bool, law: str) -> None:
    """Raises `InvariantBroken` with the `law` unless it `holds`."""
    if not holds:
        raise InvariantBroken(law)


def first_broken_law(audit: Callable[[], None]) -> str:
    """What an audit found, for an auditor who must go on living; empty when all laws hold."""
    try:
        audit()
    except (AssertionError, LookupError) as broken:
        # One table names what another does not have: no law was reached, and one is broken.
        where = _place(broken)
        what = str(broken) if isinstance(broken, AssertionError) else repr(broken)
        return f"an invariant does not hold at {where}: {what}".removesuffix(": ")
    return ""


def _place(broken: BaseException) -> str:
    """The innermost function that was at work, `invariant` itself excepted."""
    where = ""
    place = broken.__traceback__
    while place is not None:
        code = place.tb_frame.f_code
        if code is not invariant.__code__:
            where = f"{code.co_qualname}:{place.tb_lineno}"
        place = place.tb_next
    return where

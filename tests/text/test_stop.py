"""Law: where the text is cut never decides what is matched or shown."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.text.stop import StopMatcher, partial_match_chars

LETTERS = st.text("abc", max_size=14)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)


def by_the_letter(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The obvious twin: the first place where any stop string ends; the longest such one."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


@settings(max_examples=400, deadline=None)
@given(pieces=st.lists(LETTERS, max_size=5), stops=STOPS, include=st.booleans())
def test_pieces_do_not_matter(pieces, stops, include):
    matcher = StopMatcher(stops, include_stop=include)
    shown = "".join([matcher.feed(piece) for piece in pieces]) + matcher.finish()
    assert (shown, matcher.matched) == by_the_letter("".join(pieces), stops, include)


@settings(max_examples=300, deadline=None)
@given(text=LETTERS, stops=STOPS)
def test_what_is_shown_can_never_become_a_stop(text, stops):
    matcher = StopMatcher(stops, include_stop=False)
    shown = matcher.feed(text)
    if matcher.matched is None:
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_partial_match_is_the_longest():
    assert partial_match_chars("xaab", ["abc", "aabb"]) == 3
    assert partial_match_chars("x", ["abc"]) == 0

"""Law: where the text is cut never decides what is matched or shown."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.text.aho_corasick import AhoCorasick
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
    matcher = StopMatcher(AhoCorasick(stops), include_stop=include)
    shown = "".join([matcher.feed(piece) for piece in pieces]) + matcher.finish()
    assert (shown, matcher.matched) == by_the_letter("".join(pieces), stops, include)


@settings(max_examples=300, deadline=None)
@given(text=LETTERS, stops=STOPS)
def test_what_is_shown_can_never_become_a_stop(text, stops):
    matcher = StopMatcher(AhoCorasick(stops), include_stop=False)
    shown = matcher.feed(text)
    if matcher.matched is None:
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_partial_match_is_the_longest():
    assert partial_match_chars("xaab", "aabb") == 3
    assert partial_match_chars("x", "abc") == 0


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(LETTERS, max_size=5), stops=STOPS, include=st.booleans())
def test_every_piece_is_shown_as_early_as_can_be(pieces, stops, include):
    """What the old matcher, which searched for every string anew, would have let through."""
    matcher = StopMatcher(AhoCorasick(stops), include_stop=include)
    text, shown = "", ""
    for piece in pieces:
        text += piece
        shown += matcher.feed(piece)
        certain, stop = by_the_letter(text, stops, include)
        if stop is not None:
            assert (shown, matcher.matched) == (certain, stop)
            return
        held = max(
            (n for s in stops for n in range(min(len(s), len(text) + 1)) if text.endswith(s[:n])),
            default=0,
        )
        assert shown == text[: len(text) - held]


def test_characters_of_any_width_and_nul_are_matched():
    matcher = StopMatcher(AhoCorasick(["\0\0", "\U0010ffff\0"]), include_stop=False)
    assert matcher.feed("a\U0010ffff") == "a"
    assert matcher.feed("b\0") == "\U0010ffffb"
    assert matcher.feed("\0c") == ""
    assert matcher.matched == "\0\0"

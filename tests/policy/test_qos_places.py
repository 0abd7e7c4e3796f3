"""Places at the workers among gateways: max-min fair, and all of them used."""

from hypothesis import given
from hypothesis import strategies as st

from tandem.policy.qos.places import fair_places


def test_whoever_wants_little_gets_it_and_the_rest_is_shared():
    assert fair_places(100, ()) == 100
    assert fair_places(100, (1,)) == 99
    assert fair_places(100, (500,)) == 50
    assert fair_places(100, (10, 500)) == 45
    assert fair_places(2, (9, 9, 9)) == 1


@given(st.integers(1, 1000), st.lists(st.integers(0, 2000), max_size=6))
def test_together_gateways_take_no_more_places_than_there_are(places, others):
    mine = fair_places(places, others)
    assert max(1, places // (len(others) + 1)) <= mine <= places
    # With this gateway, which wants all, nobody else gets more than it wants; nothing is left over.
    wants = [places, *others]
    if places >= len(wants):
        got = [
            min(want, fair_places(places, wants[:index] + wants[index + 1 :]))
            for index, want in enumerate(wants)
        ]
        assert abs(sum(got) - min(places, sum(wants))) <= len(wants)

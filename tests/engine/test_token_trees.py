"""Token trees: what is sound of them, which path is kept, and that the likeliest guesses grow."""

import itertools
import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.proposers.growing_tree import ROOT, GrowingTree, candidate_shares
from tandem.engine.proposers.medusa import grown_trees
from tandem.facts.token_tree import NO_GUESSES, TokenTree
from tandem.kernels.sampling import NO_TOKEN, DraftCandidates

WILD = st.builds(
    TokenTree,
    st.lists(st.integers(-2, 6), max_size=8).map(tuple),
    st.lists(st.integers(-3, 8), max_size=8).map(tuple),
)


@st.composite
def trees(draw):
    tokens = draw(st.lists(st.integers(0, 3), max_size=10))
    return TokenTree(
        tuple(tokens), tuple(draw(st.integers(-1, at - 1)) for at in range(len(tokens)))
    )


def test_a_tree_by_hand():
    tree = TokenTree((5, 6, 7, 8, 9), (-1, -1, 1, 0, 2))
    assert [tree.path(number) for number in range(-1, 5)] == [
        (),
        (0,),
        (1,),
        (1, 2),
        (0, 3),
        (1, 2, 4),
    ]
    # Behind what is known 6 was drawn, behind that 7, behind that something else.
    assert tree.walk((6, 0, 7, 4, 0, 0)) == (1, 2)
    assert tree.walk((1, 8, 7, 9, 0, 0)) == ()
    assert tree.chain() == TokenTree((5, 8))
    assert tree.first(3) == TokenTree((5, 6, 7), (-1, -1, 1))
    assert TokenTree((5, 6)).chain() == TokenTree((5, 6)) == TokenTree((5, 6)).sound(7, 9)
    assert TokenTree((5, 6)).walk((5, 6, 7)) == (0, 1) == TokenTree((5, 6)).path(1)


@given(WILD, st.integers(0, 9))
def test_what_is_sound_of_anything(tree, most):
    sound = tree.sound(5, most)
    assert len(sound) <= most
    assert sound.tokens == tree.tokens[: len(sound)]
    assert sound == sound.sound(5, len(sound))
    for number, token in enumerate(sound.tokens):
        assert 0 <= token < 5
        assert -1 <= sound.parent(number) < number
    if len(sound) < min(most, len(tree)) and len(tree.parents) in (0, len(tree)):
        number = len(sound)
        assert not (0 <= tree.tokens[number] < 5 and -1 <= tree.parent(number) < number)


@given(trees(), st.data())
def test_the_walk_follows_what_was_drawn(tree, data):
    drawn = [data.draw(st.integers(0, 3)) for _ in range(len(tree) + 1)]
    path = tree.walk(drawn)
    here = -1
    for number in path:
        assert tree.parent(number) == here
        assert tree.tokens[number] == drawn[here + 1]
        here = number
    # Nobody who follows was drawn, or the walk would go on.
    behind = [at for at in range(len(tree)) if tree.parent(at) == here and at > here]
    assert all(tree.tokens[at] != drawn[here + 1] for at in behind)
    assert path == (tree.path(path[-1]) if path else ())


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 10), st.integers(0, 1 << 30))
def test_heads_draft_the_likeliest_of_all_paths(heads, branches, most, seed):
    """Beside all paths, sorted."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(heads, branches, generator=generator, dtype=torch.float64)
    scores = scores.sort(dim=1, descending=True).values
    tokens = torch.arange(heads * branches).view(heads, branches)
    candidates = DraftCandidates(tokens, scores)
    (tree,) = grown_trees([most], [tokens[:, 0].tolist()], candidates)
    shares = torch.log_softmax(scores, dim=1).tolist()
    paths = {}
    for length in range(1, heads + 1):
        for ranks in itertools.product(range(branches), repeat=length):
            path = tuple(head * branches + rank for head, rank in enumerate(ranks))
            paths[path] = math.fsum(shares[head][rank] for head, rank in enumerate(ranks))
    found = [tuple(tree.tokens[at] for at in tree.path(number)) for number in range(len(tree))]
    assert len(set(found)) == len(found) == min(most, len(paths))
    likely = sorted(paths.values(), reverse=True)[: len(found)]
    for path, expected in zip(found, likely, strict=True):
        assert math.isclose(paths[path], expected, abs_tol=1e-9)


def test_what_was_looked_up_is_one_more_branch_of_its_chain():
    """Behind the first head's best, and from there on; nothing else changes."""
    candidates = DraftCandidates(
        torch.tensor([[1, 2], [3, 4], [5, 6]]), torch.tensor([[2.0, -2.0], [0.1, 0.0], [0.1, 0.0]])
    )
    plain, found = (
        next(grown_trees([16], [chain], candidates)) for chain in ([1, 3, 5], [1, 9, 8])
    )
    paths = {tuple(found.tokens[at] for at in found.path(number)) for number in range(len(found))}
    assert {(1, 3), (1, 4), (1, 9), (1, 9, 8)} <= paths
    assert not {8, 9} & set(plain.tokens)
    assert all(path[:2] == (1, 9) for path in paths if 8 in path)


def test_what_cannot_be_drawn_is_no_guess():
    candidates = DraftCandidates(
        torch.tensor([[4, NO_TOKEN], [NO_TOKEN, NO_TOKEN]]),
        torch.tensor([[0.3, -torch.inf], [-torch.inf, -torch.inf]], dtype=torch.float64),
    )
    assert list(grown_trees([5], [[4, NO_TOKEN]], candidates)) == [TokenTree((4,))]
    growing = GrowingTree(3)
    growing.grow(ROOT, *(each[1] for each in candidate_shares(candidates)))
    assert growing.tree() == NO_GUESSES
    assert growing.worth_growing(4) == []

"""Block hashes: the same everywhere, different whenever the bytes of the block may differ."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from tandem.facts.blocks import (
    HASH_BYTES,
    CacheRoot,
    PromptChains,
    block_hash,
    extend_chain,
    salt_of,
)

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)
ROOT = CacheRoot("model", "revision", b"layout")


def chain_of(tokens: list[int], root: bytes, block_size: int) -> list[bytes]:
    chain: list[bytes] = []
    extend_chain(chain, root, tokens, block_size)
    return chain


def test_prompts_of_several_processes_are_hashed_once_while_they_are_remembered():
    first, second, third = [1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]
    root, other_root = ROOT.hash(""), ROOT.hash("other")
    chains = PromptChains(2, prompts=2)
    known = chains.chain(root, first)
    assert list(known) == chain_of(first, root, 2)
    assert list(chains.chain(root, second)) == chain_of(second, root, 2)
    assert chains.chain(root, first) is known
    assert list(chains.chain(other_root, first)) == chain_of(first, other_root, 2)
    assert list(chains.chain(root, third)) == chain_of(third, root, 2)
    again = chains.chain(root, first)
    assert again == known
    assert again is not known


@given(TOKENS, st.integers(1, 8), st.integers(0, 40))
def test_a_chain_grown_in_steps_is_the_chain(tokens, block_size, cut):
    root = ROOT.hash("")
    chain: list[bytes] = []
    extend_chain(chain, root, tokens[:cut], block_size)
    extend_chain(chain, root, tokens, block_size)
    assert chain == chain_of(tokens, root, block_size)
    assert len(chain) == len(tokens) // block_size


@given(TOKENS, TOKENS, st.integers(1, 8))
def test_chains_agree_exactly_as_far_as_the_tokens_do(ours, theirs, block_size):
    root = ROOT.hash("")
    mine, other = chain_of(ours, root, block_size), chain_of(theirs, root, block_size)
    for index in range(min(len(mine), len(other))):
        end = (index + 1) * block_size
        assert (mine[index] == other[index]) == (ours[:end] == theirs[:end])


def test_everything_that_shapes_the_bytes_is_in_the_root():
    roots = [
        ROOT.hash(""),
        ROOT.hash("tenant"),
        CacheRoot("model", "revision2", b"layout").hash(""),
        CacheRoot("model2", "revision", b"layout").hash(""),
        CacheRoot("model", "revision", b"layout2").hash(""),
        ROOT.hash(salt_of("", "", "a" * 32)),
        ROOT.hash(salt_of("", "", "b" * 32)),
        ROOT.hash(salt_of("tenant", "", "a" * 32)),
        # Parts that run together must not look alike.
        CacheRoot("modelrevision", "", b"layout").hash(""),
    ]
    assert len(set(roots)) == len(roots)
    assert {len(root) for root in roots} == {HASH_BYTES}


def test_a_hash_is_the_same_in_another_process():
    code = (
        "from tandem.facts.blocks import CacheRoot, block_hash;"
        "print(block_hash(CacheRoot('m', 'r', b'l').hash('s'), [1, 2, 3]).hex())"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "77"},
    ).stdout.strip()
    assert printed == block_hash(CacheRoot("m", "r", b"l").hash("s"), [1, 2, 3]).hex()

"""Speculation as options say it: what is found, what memory it takes, and what is refused."""

import json
import shutil
from dataclasses import replace

import pytest

from tandem.config.environment import (
    BUNDLED_DRAFT,
    BUNDLED_EAGLE,
    BUNDLED_MEDUSA,
    BUNDLED_MODEL,
    MachineFacts,
)
from tandem.config.memory import model_facts
from tandem.config.options import ServeOptions, read_options
from tandem.config.resolve import resolve
from tandem.config.speculation import draft_source, speculation_of
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.steps import scratch_blocks
from tandem.facts.units import GIB, MIB
from tandem.live.processes.model import plan_model
from tandem.live.processes.speculation import proposer_maker
from tandem.models.configuration import read_model_spec
from tandem.policy.speculation import Speculation

MACHINE = MachineFacts(cores=2, free_memory_bytes=8 * GIB)


def options(**changed) -> ServeOptions:
    return ServeOptions(**({"kv_cache_memory": "64MiB", "device": "cpu"} | changed))


@pytest.mark.parametrize(
    ("kind", "directory"),
    [("draft", BUNDLED_DRAFT), ("medusa", BUNDLED_MEDUSA), ("eagle", BUNDLED_EAGLE)],
)
def test_the_bundled_model_has_what_drafts_for_it(kind, directory):
    source = draft_source(options(speculation=kind), BUNDLED_MODEL)
    assert source.directory == directory
    assert draft_source(options(speculation=kind, speculation_model=directory.name), BUNDLED_MODEL)
    assert draft_source(options(speculation="ngram"), BUNDLED_MODEL) is None


def test_how_far_is_what_the_options_say():
    assert speculation_of(options()) is None
    wanted = options(speculation="ngram", speculation_tokens=7, speculation_adaptive=False)
    assert speculation_of(wanted) == Speculation(7, adaptive=False)
    with pytest.raises(InvalidConfiguration, match="speculation-tokens"):
        read_options(None, {"speculation_tokens": 17})
    with pytest.raises(InvalidConfiguration, match="speculation"):
        read_options(None, {"speculation": "oracle"})


def test_what_looks_up_has_no_branches():
    with pytest.raises(InvalidConfiguration, match="speculation-branches is for --speculation dr"):
        speculation_of(options(speculation="ngram", speculation_branches=2))
    with pytest.raises(InvalidConfiguration, match="speculation-branches"):
        read_options(None, {"speculation_branches": 9})
    assert speculation_of(options(speculation="eagle", speculation_branches=8)) == Speculation(4)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"speculation": "ngram", "speculation_model": "x"}, "is for --speculation draft"),
        ({"speculation": "medusa", "speculation_model": str(BUNDLED_EAGLE)}, "model_type is eagle"),
        ({"speculation": "eagle", "speculation_model": str(BUNDLED_DRAFT)}, "model_type is qwen3"),
        ({"speculation": "draft", "speculation_model": "/nowhere"}, "no directory"),
    ],
)
def test_what_cannot_draft_is_named(changed, problem):
    with pytest.raises(InvalidConfiguration, match=problem):
        draft_source(options(**changed), BUNDLED_MODEL)


def test_another_model_needs_one_named(tmp_path):
    with pytest.raises(InvalidConfiguration, match="needs speculation-model"):
        draft_source(options(speculation="eagle"), tmp_path)


def test_a_draft_model_of_other_tokens_is_refused(tmp_path):
    other = tmp_path / "other"
    shutil.copytree(BUNDLED_DRAFT, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    wanted = options(speculation="draft", speculation_model=str(other), load_format="dummy")
    planned = plan_model(str(BUNDLED_MODEL), wanted)
    with pytest.raises(InvalidConfiguration, match=r"100 tokens and .* has 2560"):
        proposer_maker(planned, wanted, 1)


@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_heads_for_another_model_are_refused(kind, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(BUNDLED_DRAFT, model)
    heads = {"medusa": BUNDLED_MEDUSA, "eagle": BUNDLED_EAGLE}[kind]
    wanted = options(speculation=kind, speculation_model=str(heads))
    with pytest.raises(InvalidConfiguration, match="for a model of 256 hidden features"):
        proposer_maker(plan_model(str(model), wanted), wanted, 1)


@pytest.mark.parametrize("kind", ["draft", "eagle"])
def test_kv_of_drafts_lies_in_as_many_blocks(kind):
    plain = resolve(options(), model_facts(BUNDLED_MODEL, options()), MACHINE)
    wanted = options(speculation=kind)
    facts = model_facts(BUNDLED_MODEL, wanted)
    plan = resolve(wanted, facts, MACHINE)
    layout = plan.layout
    draft_bytes = facts.drafts.block_bytes(wanted, is_cpu=True)
    assert draft_bytes == layout.block_bytes * facts.drafts.source.spec.layers // layout.layers
    assert plan.block_bytes == layout.block_bytes + draft_bytes
    assert plan.worker.block_count == 64 * MIB // plan.block_bytes < plain.worker.block_count
    scratch = scratch_blocks(wanted.block_size) * wanted.max_num_seqs * draft_bytes
    assert facts.drafts.other_bytes(wanted, is_cpu=True) > scratch
    # Drafts are drawn, too: more rows of logits than sequences.
    with pytest.raises(InvalidConfiguration, match="memory"):
        resolve(wanted, facts, replace(MACHINE, free_memory_bytes=70 * MIB))
    assert read_model_spec(BUNDLED_MODEL).layers == layout.layers

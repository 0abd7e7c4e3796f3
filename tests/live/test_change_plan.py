"""What a cluster file would do to a cluster that runs: which workers start and go, and why not."""

from pathlib import Path

import pytest

from tandem.config.cluster.live import LiveFile, checked
from tandem.config.cluster.tree import override, parse
from tandem.config.environment import BUNDLED_DRAFT
from tandem.facts.errors import InvalidConfiguration
from tandem.live.processes.change_plan import plan_change, worker_changes
from tandem.live.processes.setups import Setups

TEXT = """\
model: tandem-mini
block_size: 16
serve: {port: 0, max-num-seqs: 8, kv-cache-memory: 64MiB, threads: 1}
pools:
  - {name: p, role: prefill, device: cpu}
  - {name: d, role: decode, device: cpu, count: 2, max_count: 4}
"""
RUNNING = {"p-0": "p", "d-0": "d", "d-1": "d"}


def read(*assignments: str, text: str = TEXT) -> LiveFile:
    tree = parse(text, "c.yaml")
    for assignment in assignments:
        override(tree, assignment)
    return checked(tree, Path())


def moves(before: LiveFile, after: LiveFile, running=RUNNING, taken=()) -> tuple[list, tuple]:
    changed = worker_changes(before.cluster, after.cluster, running, taken)
    return list(changed.starting), changed.leaving


def test_as_many_workers_as_the_file_has():
    assert moves(read(), read("pools.d.count=4")) == (["d-2", "d-3"], ())
    assert moves(read(), read("pools.d.count=1")) == ([], ("d-1",))
    # One that was joined by hand has its name, and stays.
    assert moves(read(), read("pools.d.count=3"), taken={"d-2"}) == (["d-3"], ())


def test_who_went_by_hand_stays_away_until_the_count_says_otherwise():
    left = {"p-0": "p", "d-1": "d"}
    assert moves(read(), read("policies.routing=random"), left) == ([], ())
    assert moves(read(), read("pools.d.count=3"), left) == (["d-0", "d-2"], ())


def test_a_pool_comes_before_another_goes():
    other = read(text=TEXT.replace("name: d, role: decode", "name: e, role: decode"))
    assert moves(read(), other) == (["e-0", "e-1"], ("d-0", "d-1"))


def test_a_planner_keeps_its_workers_within_its_bounds():
    planned = "policies.planning=tandem"
    running = RUNNING | {"d-2": "d", "d-3": "d"}
    assert moves(read(planned), read(planned, "pools.d.count=3"), running) == ([], ())
    fewer = read(planned, "pools.d.max_count=3")
    assert moves(read(planned), fewer, running) == ([], ("d-3",))
    # Without it there are as many as the file has.
    assert moves(read(planned), read(), running) == ([], ("d-2", "d-3"))


def plan(*assignments: str, text: str = TEXT):
    running = read(text=text)
    after = read(*assignments, text=text).text("tandem-mini")
    return plan_change(after, running, Setups(running.cluster), RUNNING, set(RUNNING))


def test_all_reasons_are_told_and_none_is_a_line_of_a_file_that_nobody_has():
    found = plan("block_size=32", "serve.port=80", "pools.d.count=3").refusals
    assert [reason.partition(":")[0] for reason in found] == ["block_size", "serve.port"]
    (problem,) = plan("pools.d.count=2", "policies.admission={name: threshold, typo: 1}").refusals
    assert "typo" in problem
    with pytest.raises(InvalidConfiguration, match=r"^tandem apply: ") as refused:
        plan_change(f"{TEXT}policies: {{eviction: arc}}\n", read(), Setups(read().cluster), {}, ())
    assert "line" not in str(refused.value)


def test_one_model_has_many_spellings():
    running = read()
    setups = Setups(running.cluster)
    by_folder = running.text(str(setups.checkpoint))
    assert not plan_change(by_folder, running, setups, RUNNING, ()).keys
    other = TEXT.replace("tandem-mini", "/tmp")
    (problem,) = plan_change(other, running, setups, RUNNING, ()).refusals
    assert problem.startswith("model: tandem-mini -> /tmp cannot change live")


def test_the_model_of_a_pool_has_many_spellings_too_and_comes_with_its_pool():
    small = TEXT.replace("pools:\n", "pools:\n  - {name: s, device: cpu, model: SMALL}\n")
    small += "classes: [{name: economy, pools: [s]}]\n"
    running = read(text=small.replace("SMALL", "tandem-mini-draft"))
    setups = Setups(running.cluster)
    for spelling in ("tandem-mini-draft", str(BUNDLED_DRAFT)):
        text = small.replace("SMALL", spelling)
        assert not plan_change(text, running, setups, RUNNING, ()).keys
    (problem,) = plan_change(
        small.replace("SMALL", "tandem-mini"), running, setups, {}, ()
    ).refusals
    assert "pools.s.model" in problem
    # It comes and goes with the pool.
    plain = read()
    found = plan_change(
        small.replace("SMALL", "tandem-mini-draft"), plain, Setups(plain.cluster), RUNNING, ()
    )
    assert not found.refusals
    assert list(found.workers.starting) == ["s-0"]
    started = found.setups.worker(found.file.cluster.pool("s"), "s-0", ())
    assert started.model == str(BUNDLED_DRAFT)
    gone = plan_change(TEXT, running, setups, {**RUNNING, "s-0": "s"}, ())
    assert not gone.refusals
    assert gone.workers.leaving == ("s-0",)


def test_workers_that_run_cannot_be_told_of_another_kv_format():
    (problem,) = plan(
        "pools=[{name: p, role: prefill, device: cpu}, "
        "{name: e, role: decode, device: cpu, kv_dtype: float16}]"
    ).refusals
    assert "formats" in problem


def test_memory_that_new_workers_have_not_is_told_before():
    (problem,) = plan(
        "pools.d.count=500", text=TEXT.replace("max_count: 4", "max_count: 500")
    ).refusals
    assert "does not fit" in problem


def test_a_plan_is_checked_without_letting_anybody_in():
    running = read()
    setups = Setups(running.cluster)
    known = dict(setups.admitted)
    after = read("pools.d.count=3").text("tandem-mini")
    found = plan_change(after, running, setups, RUNNING, set(RUNNING))
    assert list(found.workers.starting) == ["d-2"]
    assert not found.refusals
    assert setups.admitted == known
    # Those who run keep their keys, and a new one gets its own.
    setups.worker(running.cluster.pools[1], "d-1", ())
    changed = setups.with_cluster(found.file.cluster)
    changed.worker(found.file.cluster.pools[1], "d-2", ())
    assert set(changed.admitted) == {*known, "d-1", "d-2"}
    assert changed.admitted["d-1"] == setups.admitted["d-1"]

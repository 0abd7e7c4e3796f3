"""Laws of a whole cluster: whoever joins, leaves, flips, drains, dies, hangs, is cut off or comes
back, whatever slower tiers lose, spoil, refuse or bring late, and whatever a planner wants, each
request ends once, with the tokens of the ledger, and nothing stays behind."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from tandem.cluster.gateway.planner import PlanningConfig
from tandem.facts.fleet import PlanningMode, Tier
from tandem.messages.planning import ActionKind
from tandem.messages.worker import RequestsAborted, TransferPinsReleased
from tests.observe.recorded_cluster import Recorded
from tests.seeds import seeds
from tests.twin.chance_cluster import ChanceCluster
from tests.twin.chance_draws import World
from tests.twin.chance_run import play

CHUNKS, SEEDS = seeds(2, 10), 100
TIER_SEEDS = seeds(40, 400)
PLANNED_SEEDS = seeds(40, 1000)
LEASE_SEEDS = seeds(20, 400)
SPECULATING_SEEDS = seeds(20, 400)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whatever_happens_each_request_gets_its_answer_once(chunk):
    seen: Counter[str] = Counter()
    for seed in range(chunk * SEEDS, (chunk + 1) * SEEDS):
        seen.update(play(seed, World()).seen)
    # The law has met what it is about.
    rare = (
        "taken up again",
        "copies",
        "migrations",
        "migrated",
        "hand-overs",
        "hand-overs without KV",
        "flips",
    )
    rare += ("fenced", "leaves", "withdrawn", "gateway lost", "reports lost")
    rare += ("transfers failed", "moves stopped", "operations done", "preempted", "in part")
    rare += ("shared accounts", "cut off")
    assert all(seen[what] >= 2 for what in rare), seen
    assert seen["turned away"], seen
    assert seen["finished"] > 3 * seen["rejected"], seen


def test_slower_tiers_cost_time_and_never_a_token():
    """And a journal decides the same, of every other run: who is recorded moves nothing by hand."""
    seen: Counter[str] = Counter()
    for seed in range(0, TIER_SEEDS, 2):
        cluster = play(seed, World(tiers=True), Recorded).cluster
        seen.update(cluster.seen)
        seen["decisions"] += cluster.replay_all()
        seen.update(play(seed + 1, World(tiers=True)).seen)
    assert seen["decisions"] > 100 * TIER_SEEDS // 2
    rare = ("flips", "fenced", "gateway lost")
    rare += ("fetches whole", "fetches corrupt", "fetches missing", "fetches broken")
    rare += ("no room to stage", "disks found", "pool joined", "pool gone")
    rare += tuple(f"kept on {tier}" for tier in (Tier.HOST, Tier.DISK, Tier.REMOTE))
    rare += ("copied from host", "copied from disk", "copied from remote", "prefetched")
    if TIER_SEEDS >= 400:
        rare += ("fetches stopped",)
    assert all(seen[what] for what in rare), seen


def test_whatever_a_planner_wants_each_request_gets_its_answer_once():
    seen: Counter[str] = Counter()
    for seed in range(PLANNED_SEEDS):
        seen.update(play(seed, World(plans=True)).seen)
    # These clusters end when everybody takes requests: spares are in tests/cluster/test_spares.py.
    spares = {ActionKind.ACTIVATE, ActionKind.SPARE, ActionKind.START_SPARE}
    kinds = [str(kind) for kind in ActionKind if kind not in spares]
    assert all(seen[what] >= 5 for what in (*kinds, "planned starts", "advised")), seen
    assert seen["starts failed"], seen
    assert seen["finished"] > 100, seen


def test_drafts_change_no_answer_whatever_happens():
    """And a journal of what speculating workers report decides the same."""
    seen: Counter[str] = Counter()
    for seed in range(SPECULATING_SEEDS):
        run = play(seed, World(speculates=True), Recorded)
        seen.update(run.cluster.seen)
        seen["decisions"] += run.cluster.replay_all()
        for worker in run.cluster.run.workers:
            seen["drafts kept"] += worker.drafts.accepted_tokens
            seen["drafts lost"] += worker.drafts.draft_tokens - worker.drafts.accepted_tokens
    # Nobody who is recorded migrates by hand.
    for seed in range(SPECULATING_SEEDS, 4 * SPECULATING_SEEDS):
        seen.update(play(seed, World(speculates=True, tiers=seed % 8 == 0)).seen)
    assert seen["decisions"] > 10 * SPECULATING_SEEDS
    rare = ("drafts kept", "drafts lost", "migrated", "hand-overs", "flips", "fenced", "preempted")
    assert all(seen[what] >= 2 for what in rare), seen


class ForgetfulGateways(ChanceCluster):
    """Half of the messages by which gateways give requests up name none of them."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        chance, send = Random(self.scenario.seed), self.bus.to_peer

        def to_peer(gateway, peer, message) -> None:
            if isinstance(message, RequestsAborted | TransferPinsReleased) and chance.randrange(2):
                self.seen["forgotten"] += len(message.request_ids)
                message = type(message)(())
            send(gateway, peer, message)

        self.bus.to_peer = to_peer


def test_what_a_gateway_forgets_ends_with_its_lease():
    """Who holds blocks at the end breaks the run; the lease is all that can free these."""
    seen: Counter[str] = Counter()
    for seed in range(LEASE_SEEDS):
        seen.update(play(seed, World(), ForgetfulGateways).seen)
    assert seen["forgotten"] >= 100, seen
    assert seen["leases ended"] >= 20, seen


class AdvisoryPlanning(ChanceCluster):
    """Its planner decides and does nothing."""

    def planning_mode(self, planning: PlanningConfig) -> PlanningConfig:
        return replace(planning, mode=PlanningMode.ADVISORY)


def test_a_planner_that_only_advises_changes_nothing():
    for seed in range(5):
        run = play(seed, World(plans=True), AdvisoryPlanning)
        assert run.seen["advised"]
        assert not run.seen["planned starts"]

"""What a gateway answers to a what-if: its journal, in the real simulator."""

import asyncio

import pytest

from tandem.facts.errors import InvalidRequest, Overloaded
from tandem.facts.overview import WhatIfChange
from tandem.live.gateway.what_if import WhatIf
from tests.commands.test_replay_command import REQUESTS, record


async def test_policies_and_worker_counts_are_tried_beside_what_was(tmp_path):
    what_if = WhatIf(record(tmp_path))
    change = WhatIfChange(3600.0, "round-robin", "threshold", {"both": 3})
    asked = asyncio.ensure_future(what_if.simulate(change))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await what_if.simulate(change)
    runs = await asked
    labels = [run.label for run in runs]
    assert labels == ["recorded", "unchanged", "cost none", "round-robin threshold"]
    assert {run.requests for run in runs} == {REQUESTS}
    assert runs[0].ttft_p50_s == 0.005
    assert runs[0].tpot_p50_s == 0.001
    assert all(run.attainment == 1.0 for run in runs)


async def test_any_setting_of_the_cluster_file_is_tried(tmp_path):
    what_if = WhatIf(record(tmp_path))
    sizes = ("max_num_seqs=16", "max_num_batched_tokens=16")
    settings = ("slo.ttft=1us", *(f"pools.both.{size}" for size in sizes))
    runs = await what_if.simulate(WhatIfChange(3600.0, settings=settings))
    assert [run.label for run in runs] == ["recorded", "unchanged", "cost"]
    _, unchanged, changed = runs
    assert (unchanged.attainment, changed.attainment) == (1.0, 0.0)
    # A prompt that nobody had before takes four steps instead of one.
    assert changed.ttft_p99_s > unchanged.ttft_p99_s
    with pytest.raises(InvalidRequest, match="max_num_batched_tokens"):
        await what_if.simulate(WhatIfChange(3600.0, settings=("pools.both.max_num_batch=16",)))


async def test_what_cannot_be_tried_is_told_and_the_next_one_is_answered(tmp_path):
    what_if = WhatIf(record(tmp_path))
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="unknown rond-robin; did you mean round-robin"):
            await what_if.simulate(WhatIfChange(3600.0, "rond-robin"))

"""Fleets that the studies of disaggregation and planning compare, and requests for them."""

from dataclasses import replace

import numpy as np

from tandem.bench.laws import Arrivals, Tokens, draw_arrivals
from tandem.config.cluster.keys import Choice
from tandem.config.cluster.requests import PolicyConfig
from tandem.config.cluster.workers import PoolConfig
from tandem.facts.fleet import Role
from tandem.facts.trace import TraceRow

AGGREGATED, STATIC = "aggregated", "static"


def fleet(pool: PoolConfig, workers: int, arm: str) -> tuple[PoolConfig, ...]:
    """So many workers: all for both phases in the aggregated arm, half for each in all others."""
    if arm == AGGREGATED:
        return (replace(pool, name="worker", count=workers),)
    half = workers // 2
    return split(pool, half, half)


def split(pool: PoolConfig, prefill: int, decode: int) -> tuple[PoolConfig, ...]:
    return (
        replace(pool, name="prefill", role=Role.PREFILL, count=prefill),
        replace(pool, name="decode", role=Role.DECODE, count=decode),
    )


def planned(arm: str, routing: str = "cost", **options: object) -> PolicyConfig:
    name = STATIC if arm == AGGREGATED else arm
    return PolicyConfig(routing=Choice(routing), planning=Choice(name, options))


def poisson(lengths: Tokens, rate_rps: float) -> list[TraceRow]:
    """One request for each pair of lengths, by a Poisson process."""
    arrivals_s = draw_arrivals(Arrivals(rate_rps), len(lengths), np.random.default_rng(1))
    return [
        TraceRow(arrival_s, prompt_tokens, output_tokens)
        for arrival_s, (prompt_tokens, output_tokens) in zip(
            arrivals_s.tolist(), lengths.tolist(), strict=True
        )
    ]

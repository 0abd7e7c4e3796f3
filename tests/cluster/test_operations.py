"""Operations that were not heard: a connection broke after the order was sent."""

from dataclasses import replace

from tandem.facts.fleet import Role
from tandem.messages.cluster import RoleStateReported, Undrain
from tandem.messages.gateway import DrainAsked, OperationEnded, UndrainAsked
from tests.cluster.cluster_parts import GatewayUnderTest, idle_load, of_kind, register, told


def test_a_flip_and_an_undrain_that_were_both_lost_both_end():
    workers = [register(name) for name in ("a", "b")]
    gateway = GatewayUnderTest(*workers)
    gateway.handle(DrainAsked(1, "a"))
    effects = gateway.says(RoleStateReported("a", Role.BOTH, False), idle_load("a"))
    assert of_kind(effects, OperationEnded) == [OperationEnded(1)]
    gateway.handle(DrainAsked(2, "a", then_role=Role.PREFILL))
    gateway.handle(UndrainAsked(3, "a"))
    effects = gateway.says(replace(workers[0], accepting=False))
    assert of_kind(told(effects, "a"), Undrain)
    effects = gateway.says(RoleStateReported("a", Role.BOTH, True))
    ended = {effect.operation_id: effect.problem for effect in of_kind(effects, OperationEnded)}
    assert ended.keys() == {2, 3}, ended
    assert not ended[3]
    assert "was told to take requests again" in ended[2]

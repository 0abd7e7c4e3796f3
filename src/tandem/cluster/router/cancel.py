"""Taking a request back from wherever it is."""

from tandem.cluster.router.admission import Entrance
from tandem.cluster.router.kv_transfer import Handover
from tandem.cluster.router.request_state import Passage, Stage
from tandem.messages.router import RouterEffect, Tell
from tandem.messages.worker import HoldsReleased, RequestsAborted


def call_back(passage: Passage, entrance: Entrance, handover: Handover) -> list[RouterEffect]:
    """Nobody need go on with this request where it is now: it leaves the line, or its workers are
    told and its transfers stopped."""
    if passage.stage is Stage.LINE:
        entrance.suspects.wait_no_more(passage)
        return []
    effects: list[RouterEffect] = []
    for worker in list(passage.imports):
        effects += handover.stop(passage, worker)
    for worker in dict.fromkeys((passage.decode, passage.prefill)):
        if worker in entrance.fleet.standings:
            wire_ids = (passage.name_at(worker),)
            effects.append(Tell(worker, RequestsAborted(wire_ids)))
            effects.append(Tell(worker, HoldsReleased(wire_ids)))
    return effects

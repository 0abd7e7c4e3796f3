"""Taking a request back from wherever it is."""

from tandem.cluster.router.admission import AdmissionFront
from tandem.cluster.router.kv_transfer import KvTransfers
from tandem.cluster.router.request_state import RequestState, Stage
from tandem.messages.router import RouterEffect, Tell
from tandem.messages.worker import RequestsAborted, TransferPinsReleased


def cancel_everywhere(
    state: RequestState, admission: AdmissionFront, kv_transfers: KvTransfers
) -> list[RouterEffect]:
    """Nobody need go on with this request where it is now: it leaves the line, or its workers are
    told and its transfers stopped."""
    if state.stage is Stage.QUEUED:
        admission.suspects.wait_no_more(state)
        return []
    effects: list[RouterEffect] = []
    for worker in list(state.imports):
        effects += kv_transfers.stop(state, worker)
    for worker in dict.fromkeys((state.decode, state.prefill)):
        if worker in admission.fleet.workers:
            wire_ids = (state.name_at(worker),)
            effects.append(Tell(worker, RequestsAborted(wire_ids)))
            effects.append(Tell(worker, TransferPinsReleased(wire_ids)))
    return effects

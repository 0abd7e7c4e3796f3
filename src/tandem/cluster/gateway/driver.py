"""The driver contract of a gateway machine: its ports, and how effects are performed on them.

Live these ports are a channel to all workers, the mailboxes of the clients and the operators'
questions; in the twin they are simulated processes and the records of a run.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tandem.messages.cluster import ToWorker
from tandem.messages.gateway import (
    AuditEnded,
    ConfigurationTaken,
    Deliver,
    Fence,
    GatewayEffect,
    OperationEnded,
    PlanDecided,
    SendToWorker,
    SimulateShapes,
    StartWorker,
)
from tandem.messages.router import AnnounceDegraded, CutOff, Explain, LeaveOut, Reject
from tandem.messages.worker import FailRequest


class WorkersPort(Protocol):
    """The way to the processes of workers and of the shared pool."""

    def send_to_peer(self, peer: str, message: ToWorker) -> None:
        """After everything that was sent there before. Never waits: a process that does not read is
        lost."""
        ...

    def fence(self, effect: Fence) -> None:
        """Close the channel of a process that counts as dead, and end it if that is possible."""
        ...


class ClientsPort(Protocol):
    """Whoever waits for answers."""

    def deliver(self, effect: Deliver) -> None: ...

    def reject(self, effect: Reject) -> None: ...

    def leave_out(self, effect: LeaveOut) -> None: ...

    def cut_off(self, effect: CutOff) -> None: ...

    def announce_degraded(self, effect: AnnounceDegraded) -> None: ...

    def fail(self, effect: FailRequest) -> None: ...


class OperatorsPort(Protocol):
    """Whoever asked for an operation, and whoever reads how decisions came about."""

    def operation_ended(self, effect: OperationEnded | AuditEnded) -> None: ...

    def explain(self, effect: Explain) -> None: ...

    def plan_decided(self, effect: PlanDecided) -> None: ...

    def configuration_taken(self, effect: ConfigurationTaken) -> None: ...


class LauncherPort(Protocol):
    """Whoever starts processes of workers."""

    def start_worker(self, effect: StartWorker) -> None:
        """It registers once it is up; where it cannot start, `StartFailed`."""
        ...


class SimulatorPort(Protocol):
    """Whoever simulates what other shapes of the fleet would have done."""

    def simulate_shapes(self, effect: SimulateShapes) -> None:
        """Ends with one `ShapesSimulated`, also where it cannot be done. Never waits."""
        ...


@dataclass(frozen=True, slots=True)
class GatewayPorts:
    """One object may be several of them."""

    workers: WorkersPort
    clients: ClientsPort
    operators: OperatorsPort
    launcher: LauncherPort
    simulator: SimulatorPort


def perform(effects: Iterable[GatewayEffect], ports: GatewayPorts) -> None:
    """Have the effects done, in order."""
    for effect in effects:
        match effect:
            case Deliver():
                ports.clients.deliver(effect)
            case SendToWorker(peer, message):
                ports.workers.send_to_peer(peer, message)
            case Reject():
                ports.clients.reject(effect)
            case LeaveOut():
                ports.clients.leave_out(effect)
            case CutOff():
                ports.clients.cut_off(effect)
            case AnnounceDegraded():
                ports.clients.announce_degraded(effect)
            case FailRequest():
                ports.clients.fail(effect)
            case Fence():
                ports.workers.fence(effect)
            case OperationEnded() | AuditEnded():
                ports.operators.operation_ended(effect)
            case Explain():
                ports.operators.explain(effect)
            case StartWorker():
                ports.launcher.start_worker(effect)
            case SimulateShapes():
                ports.simulator.simulate_shapes(effect)
            case PlanDecided():
                ports.operators.plan_decided(effect)
            case ConfigurationTaken():
                ports.operators.configuration_taken(effect)

"""A rank without a model, as a process: answers its leader until the link ends."""

import os
import sys

from tandem.facts.kv import MoveReport
from tandem.facts.steps import StepPlan, StepResult
from tandem.live.processes.lifecycle import end_with_parent
from tandem.live.ranks.ranks import RankLost, link_to_leader
from tandem.messages.node import BlocksExported, ExportBlocks, MoveFinished, StartMove
from tandem.messages.ranks import Ping, Pong, RankBegins, RankFailed, RankReady


def main(descriptor: int) -> None:
    end_with_parent(os.getppid())
    link = link_to_leader(descriptor, 10.0)
    while True:
        try:
            message = link.receive()
        except RankLost:
            return
        match message:
            case RankBegins(setup):
                if setup == b"fail":
                    link.send(RankFailed("no memory"))
                link.send(RankReady(()))
            case Ping():
                link.send(Pong())
            case StepPlan():
                link.send(StepResult(message.step_id, tuple(message.slots.tolist())))
            case StartMove(move_id, order):
                arrived = order.transfer_id >= 0
                link.send(MoveFinished(move_id, MoveReport(arrived, "shm", 10, 2, 0.5)))
            case ExportBlocks(export_id):
                link.send(BlocksExported(export_id))


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)

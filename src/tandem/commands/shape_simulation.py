"""The process that simulates shapes of a fleet for a gateway's planner: reads one question, writes
the answer, and ends. It has the lowest priority, and stops at the seconds that it is given."""

import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from tandem.commands.scenario import unplanned
from tandem.config.cluster.file import Cluster, read_cluster
from tandem.config.cluster.live import as_served
from tandem.config.hardware.pools import priced
from tandem.live.processes.lifecycle import end_with_parent
from tandem.messages.gateway import ShapesSimulated, SimulateShapes
from tandem.twin.shape_simulation import simulate_shapes

LOWEST_PRIORITY = 19


def served_cluster(file: Path) -> Cluster:
    """The cluster of the file as its gateways price it. Raises `InvalidConfiguration`."""
    cluster = as_served(read_cluster(str(file)))
    return replace(cluster, pools=tuple(priced(pool) for pool in cluster.pools))


def answer(question: SimulateShapes, cluster: Cluster) -> ShapesSimulated:
    """With as many shapes as this process has time for, its start included."""

    def has_time() -> bool:
        return time.process_time() < question.cpu_s

    answered = simulate_shapes(question, partial(unplanned, cluster), has_time)
    return msgspec.structs.replace(answered, cpu_s=time.process_time())


def main() -> None:
    """What a gateway starts as `python -m`: the last two words are the cluster file and the process
    id of the gateway."""
    end_with_parent(int(sys.argv[-1]))
    os.nice(LOWEST_PRIORITY)
    question = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=SimulateShapes)
    cluster = served_cluster(Path(sys.argv[-2]))
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer(question, cluster)))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

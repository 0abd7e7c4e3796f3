"""A cluster on Ray, without any Ray: why a process finds no machine, with what to change; and what
an actor does with its process."""

import asyncio
import json
import os
import signal
import sys

import pytest

from tandem.live.launching.ray_actor import KEPT_BYTES, NodeProcess
from tandem.live.launching.ray_places import Machine, unreachable, why_unplaced

MACHINES = (
    Machine("10.0.0.2", {"CPU": 4, "prefill_node": 1, "node:10.0.0.2": 1, "memory": 1e9}),
    Machine("10.0.0.3", {"CPU": 4, "node:10.0.0.3": 1}),
)


def test_a_resource_that_nobody_has_is_named_with_what_there_is():
    why = why_unplaced({"decode-0": {"CPU": 1, "decode_node": 1}}, MACHINES, "spread")
    assert why == (
        "no machine has all that a process needs: decode-0 needs 1 CPU, 1 decode_node. There are "
        "10.0.0.2 with 4 CPU, 1 prefill_node; 10.0.0.3 with 4 CPU"
    )


def test_who_is_left_over_when_the_machines_are_full():
    bundles = {f"decode-{index}": {"CPU": 3.0} for index in range(3)}
    assert "no room is left for decode-2 (3 CPU)." in why_unplaced(bundles, MACHINES, "pack")


def test_one_machine_each_is_told_where_there_are_too_few():
    bundles = {f"decode-{index}": {"CPU": 1.0} for index in range(3)}
    why = why_unplaced(bundles, MACHINES, "strict_spread")
    assert "wants a machine for each of 3 processes, and there are 2" in why


def test_machines_that_others_use_are_told_apart():
    assert "others use them" in why_unplaced({"decode-0": {"CPU": 4}}, MACHINES, "spread")
    assert why_unplaced({"decode-0": {"CPU": 4}}, (), "spread").endswith("There are no machines")


@pytest.mark.parametrize(
    ("listen", "machines", "problem"),
    [
        ("127.0.0.1", MACHINES, "nobody on 10.0.0.2 reaches 127.0.0.1"),
        ("0.0.0.0", MACHINES, "no address that workers could be told"),
        ("10.0.0.1", MACHINES, ""),
        ("gateways.example", MACHINES, ""),
        ("127.0.0.1", (Machine("127.0.0.2", {}), Machine("127.0.0.3", {})), ""),
    ],
)
def test_a_gateway_must_be_where_workers_reach_it(listen, machines, problem):
    why = unreachable(listen, machines)
    assert problem in why
    assert bool(why) == bool(problem)


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory files are Linux's")


async def all_of(process):
    output, code = b"", None
    while code is None:
        followed = await process.follow(len(output))
        assert followed.first_byte == len(output)
        output, code = output + followed.output, followed.code
    return output.decode(), code


async def test_a_process_gets_its_setup_from_memory_with_the_actor_as_its_parent():
    script = (
        "import json, os, sys; setup = json.load(open(sys.argv[1]));"
        "print(json.dumps([setup, sys.argv[1], os.environ.get('CHANGED'), os.getppid()]))"
    )
    process = NodeProcess("decode-0")
    content = json.dumps({"worker": "decode-0", "parent": 1}).encode()
    pid = await process.begin(("-c", script), {"CHANGED": "yes"}, content)
    assert pid != os.getpid()
    output, code = await all_of(process)
    setup, file, changed, parent = json.loads(output)
    assert setup == {"worker": "decode-0", "parent": os.getpid()}
    assert (changed, parent) == ("yes", os.getpid())
    assert file.startswith("/proc/self/fd/")
    assert code == 0


async def test_a_signal_reaches_it_and_its_end_is_given_again_to_whoever_asks_again():
    script = "import os, time; os.write(1, b'here\\n'); time.sleep(60)"
    process = NodeProcess("decode-0")
    await process.begin(("-c", script), {}, None)
    assert (await process.follow(0)).output == b"here\n"
    waiting = asyncio.ensure_future(process.follow(5))
    await process.send(signal.SIGTERM)
    ended = await waiting
    assert (ended.output, ended.code) == (b"", -signal.SIGTERM)
    again = await process.follow(0)
    assert (again.first_byte, again.output, again.code) == (0, b"here\n", -signal.SIGTERM)
    await process.send(signal.SIGTERM)


async def test_who_prints_much_is_never_held_up_and_the_end_is_kept():
    script = f"import sys; sys.stdout.write('x' * {2 * KEPT_BYTES}); print('the end')"
    process = NodeProcess("decode-0")
    await process.begin(("-c", script), {}, None)
    seen, code, last = 0, None, b""
    # Nobody fetches anything until it has ended.
    while process._process.poll() is None:
        await asyncio.sleep(0.01)
    while code is None:
        followed = await process.follow(seen)
        seen, code = followed.first_byte + len(followed.output), followed.code
        last = followed.output or last
    assert seen == 2 * KEPT_BYTES + len("the end\n")
    assert last.endswith(b"the end\n")
    assert code == 0

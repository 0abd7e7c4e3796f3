"""The event loop of a process that serves."""

import asyncio
import gc
import sys

import uvloop

# The interpreter lets another thread run after so long. By default it is 5 ms, and a loop that has
# to wait for it after each call that gives its turn away soon waits for 20 ms beside a thread that
# computes: the engine's, or one that tokenises.
SWITCH_S = 0.0005


def loop_runner() -> asyncio.Runner:
    """Runs coroutines on uvloop, where they are heard soon though other threads compute. To be made
    when the process has what it lives with: the collector, which holds the loop, leaves that alone
    (the books of a large KV pool would take it tens of milliseconds, time and again)."""
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)

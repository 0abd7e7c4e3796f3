"""The one table of modules that are named by strings: what one verb alone needs, and what
takes long to import. All else is imported plainly, at the top.

Python has no other way to import a module later than its importer, short of imports within
functions. `tandem status` answers in a third of a second; with the imports of all verbs, and torch
among them, it would take three.
"""

import gc
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Final, Literal

# Where each verb is found, in the order in which the help lists them.
VERBS: Final = {
    "serve": "tandem.commands.serve:serve_command",
    "up": "tandem.commands.up:up_command",
    "demo": "tandem.commands.demo:demo_command",
    "status": "tandem.commands.status:status_command",
    "top": "tandem.commands.top:top_command",
    "page": "tandem.commands.page:page_command",
    "explain": "tandem.commands.explain:explain_command",
    "drain": "tandem.commands.drain:drain_command",
    "undrain": "tandem.commands.drain:undrain_command",
    "flip": "tandem.commands.drain:flip_command",
    "apply": "tandem.commands.apply:apply_command",
    "restart": "tandem.commands.restart:restart_command",
    "join": "tandem.commands.join:join_command",
    "down": "tandem.commands.down:down_command",
    "gateway": "tandem.commands.gateway:gateway_command",
    "keys": "tandem.commands.keys:keys_command",
    "chat": "tandem.commands.chat:chat",
    "complete": "tandem.commands.complete:complete",
    "run-batch": "tandem.commands.run_batch:run_batch_command",
    "bench": "tandem.commands.bench:bench",
    "eval": "tandem.commands.evaluate:evaluate_command",
    "hits": "tandem.commands.hits:hits",
    "traces": "tandem.commands.traces:traces_command",
    "merge": "tandem.commands.merge:merge_command",
    "compress": "tandem.commands.compress:compress_command",
    "calibrate": "tandem.commands.calibrate:calibrate_command",
    "simulate": "tandem.commands.simulate:simulate_command",
    "replay": "tandem.commands.replay:replay_command",
    "report": "tandem.commands.report:report_command",
}
# What was a verb, and what its user is told.
FORMER_VERBS: Final = {
    "profile": "`tandem profile` is a part of `tandem calibrate` now, which measures the server "
    "around the engine as well; for the engine's steps alone: `tandem calibrate --shape engine`",
}
# What a verb needs only once it knows its options. All but the first take torch, Ray or another
# library with them.
PARTS: Final = {
    "command line": "tandem.commands.main",
    "server": "tandem.live.processes.server",
    "calibration": "tandem.commands.calibration",
    "GPUs": "tandem.config.resolve",
    "merging": "tandem.models.merging",
    "compression": "tandem.commands.compression",
    "Ray launcher": "tandem.live.launching.ray_launcher",
    "LoadGen": "tandem.bench.loadgen.library",
}
Part = Literal[
    "command line",
    "server",
    "calibration",
    "GPUs",
    "merging",
    "compression",
    "Ray launcher",
    "LoadGen",
]


def verb(name: str) -> Any:
    """The function of one of `VERBS`."""
    module, _, function = VERBS[name].partition(":")
    return getattr(_imported(module), function)


def part(name: Part) -> Any:
    """The module of one of `PARTS`."""
    return _imported(PARTS[name])


def _imported(name: str) -> ModuleType:
    """Without garbage collection meanwhile: torch makes a million objects that live as long as the
    process, and a fifth of the time would go into looking for garbage among them. The collector
    leaves them alone afterwards, too."""
    if name in sys.modules:
        return sys.modules[name]
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        gc.enable()

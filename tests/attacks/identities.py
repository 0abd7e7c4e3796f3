"""Models that differ in one thing, under one name: what is changed, and what workers make of it."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tandem.config.environment import BUNDLED_MODEL
from tandem.config.kv_format import block_format
from tandem.config.options import ServeOptions
from tandem.config.processes import CurveKeys, WorkerSetup
from tandem.facts.blocks import extend_chain
from tandem.facts.kv import BlockFormat, BlockName
from tandem.kernels.faces import choose_kernels
from tandem.live.processes.worker_rank import PlannedWorker, plan_worker
from tests.config.clusters import POOL, cluster_of_one

PROMPT = tuple(range(64))
WEIGHTS = "model.safetensors"
PLAIN = ServeOptions()


@dataclass(frozen=True)
class Change:
    """What is done to the model's folder, and how it is served before and after that."""

    to_folder: Callable[[Path], None] = lambda folder: None
    before: ServeOptions = PLAIN
    after: ServeOptions = PLAIN
    wire_dtype: str | None = None
    kv_precisions: tuple[str, ...] = ()


def copied_model(folder: Path) -> Path:
    """The bundled model in a folder that may be changed."""
    shutil.copytree(BUNDLED_MODEL, folder)
    return folder


def another_download(folder: Path) -> None:
    """As a new file takes the place of an old one: whole, under its name."""
    tensors = load_file(folder / WEIGHTS)
    name = next(name for name in sorted(tensors) if name.endswith("k_proj.weight"))
    tensors[name] = tensors[name].flip(0).contiguous()
    save_file(tensors, folder / "half", metadata={"format": "pt"})
    (folder / "half").replace(folder / WEIGHTS)


def one_bit_in_place(folder: Path) -> None:
    """The same file, as long as before, with the times that it had."""
    file = folder / WEIGHTS
    times = file.stat()
    with file.open("r+b") as opened:
        opened.seek(-1000, os.SEEK_END)
        byte = opened.read(1)[0]
        opened.seek(-1000, os.SEEK_END)
        opened.write(bytes([byte ^ 1]))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def configured(**fields: object) -> Callable[[Path], None]:
    """Other values in config.json."""

    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return change


DUMMY = ServeOptions(load_format="dummy", seed=1)
CHANGES = {
    "weights replaced": Change(another_download),
    "one bit of the weights, times set back": Change(one_bit_in_place),
    "another rope theta": Change(configured(rope_theta=12_345.0)),
    "another epsilon": Change(configured(rms_norm_eps=1e-4)),
    "int8": Change(after=ServeOptions(quantization="int8")),
    "another storage": Change(after=ServeOptions(dtype="float32")),
    "another dummy seed": Change(before=DUMMY, after=ServeOptions(load_format="dummy", seed=2)),
    "dummy weights": Change(after=DUMMY),
    "native kernels off": Change(after=ServeOptions(native_kernels=False)),
    "another KV precision": Change(after=ServeOptions(kv_cache_dtype="bfloat16")),
    "KV narrowed on its way": Change(wire_dtype="int8"),
    "KV of workers that store it narrower": Change(kv_precisions=("bfloat16", "float32")),
}

# Where the processor multiplies in what the bundled model is stored in.
if "bfloat16" in choose_kernels(torch.device("cpu"), torch.float32, True, "auto")[1]:
    CHANGES["products in float32"] = Change(after=ServeOptions(arithmetic="float32"))


def planned(
    folder: Path,
    options: ServeOptions,
    wire_dtype: str | None = None,
    kv_precisions: tuple[str, ...] = (),
) -> PlannedWorker:
    """A worker that would serve it: all but its memory."""
    sizes = {"threads": 1, "kv_cache_memory": "16MiB", "device": "cpu"}
    given = {name: getattr(options, name) for name in ServeOptions.__struct_fields__}
    return plan_worker(
        WorkerSetup(
            worker="w-0",
            pool=POOL,
            role="both",
            model=str(folder),
            options=ServeOptions(**{**given, **sizes}),
            gateways=("tcp://127.0.0.1:9000",),
            keys=CurveKeys(gateway_public="", worker_public="", worker_secret=""),
            cluster=cluster_of_one(wire_dtype=wire_dtype),
            kv_precisions=kv_precisions,
        )
    )


def format_of(worker: PlannedWorker) -> BlockFormat:
    plan = worker.model.plan
    return block_format(plan.worker.root, plan.layout)


def blocks_of(worker: PlannedWorker) -> list[BlockName]:
    """The blocks of `PROMPT`, as that worker calls them."""
    plan = worker.model.plan
    root = plan.worker.root.hash("")
    chain: list[bytes] = []
    extend_chain(chain, root, PROMPT, plan.layout.block_size)
    return [
        BlockName(digest, parent, chain[0])
        for digest, parent in zip(chain, [root, *chain], strict=False)
    ]

"""A server's own way to a quantised model: planned with its options, named, loaded, asked."""

from pathlib import Path

import pytest
import torch

from tandem.config.cluster.live import read_live_cluster, worker_options
from tandem.config.options import ServeOptions
from tandem.facts.errors import InvalidConfiguration
from tandem.live.processes.cascade import plan_cascade
from tandem.live.processes.model import load_model, plan_model
from tandem.live.processes.speculation import proposer_maker
from tests.models.formats.written import FORMATS, Written, write
from tests.models.paging import Chunk, poisoned_store, run

CHUNK = Chunk(list(range(3, 20)), [1, 0, 4, 2, 3], 0, 17)
# Of the size of logits: what 16 bits of offsets and of weights cost; what coding anew does.
TOLERANCE = {"auto": 0.02, "none": 0.02, "int8": 0.1}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write(tmp_path_factory.mktemp("planned"), FORMATS["gptq"], "qwen2")


def options(**changes: object) -> ServeOptions:
    sizes = {"threads": 1, "kv_cache_memory": "4MiB", "device": "cpu", "arithmetic": "float32"}
    return ServeOptions(**{**sizes, **changes})


def logits(folder: Path, wanted: ServeOptions) -> torch.Tensor:
    decoder = load_model(plan_model(str(folder), wanted), wanted, 1)
    return run(decoder, poisoned_store(decoder, 5), CHUNK)


def test_it_is_held_as_options_say(written: Written) -> None:
    expected = logits(written.decoded, options())
    for quantization, tolerance in TOLERANCE.items():
        found = logits(written.directory, options(quantization=quantization))
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * expected.std().item())


def test_every_way_to_hold_it_has_a_name_of_its_own(written: Written) -> None:
    ways = {
        "4 bits, as stored (gptq), and float16": {},
        "4 bits, as stored (gptq), and bfloat16": {"dtype": "bfloat16"},
        "float16, decoded from gptq": {"quantization": "none"},
        "int8, decoded from gptq": {"quantization": "int8"},
        "int4, decoded from gptq": {"quantization": "int4"},
        "float16": {"load_format": "dummy"},
    }
    planned = {
        text: plan_model(str(written.directory), options(**way)).plan for text, way in ways.items()
    }
    assert [plan.weights for plan in planned.values()] == list(ways)
    assert len({plan.worker.root for plan in planned.values()}) == len(ways)
    named = plan_model(str(written.directory), options(quantization="gptq")).plan
    assert named.worker.root == next(iter(planned.values())).worker.root


CLUSTER = """\
model: {folder}
serve: {{kv-cache-memory: 4MiB, quantization: {quantization}}}
pools:
  - {{name: w, device: cpu, dtype: {dtype}}}
"""


def pool_options(
    folder: Path, files: Written, quantization: str = "auto", dtype: str = "auto"
) -> ServeOptions:
    path = folder / "cluster.yaml"
    path.write_text(CLUSTER.format(folder=files.directory, quantization=quantization, dtype=dtype))
    cluster = read_live_cluster(str(path)).cluster
    return worker_options(cluster, cluster.pools[0])


def test_cluster_files_say_it_alike(written: Written, tmp_path: Path) -> None:
    found = pool_options(tmp_path, written, dtype="bfloat16")
    assert (found.quantization, found.dtype) == ("auto", "bfloat16")
    assert plan_model(str(written.directory), found).plan.as_stored
    found = pool_options(tmp_path, written, "none")
    assert not plan_model(str(written.directory), found).plan.as_stored
    with pytest.raises(InvalidConfiguration, match=r"awq is not how .* which is gptq"):
        plan_model(str(written.directory), pool_options(tmp_path, written, "awq"))


def test_models_beside_it_need_not_have_its_method(written: Written) -> None:
    """Nor does it need theirs."""
    plain, quantised = str(written.decoded), str(written.directory)
    for model, drafting, method in ((quantised, plain, "gptq"), (plain, quantised, "auto")):
        wanted = options(
            quantization=method, speculation="draft", speculation_model=drafting, cascade_model=""
        )
        planned = plan_model(model, wanted)
        proposer = proposer_maker(planned, wanted, 1)
        assert proposer is not None
        assert planned.plan.as_stored is (model == quantised)
        pair = options(quantization=method, cascade_model=drafting)
        large, small = plan_cascade(model, pair)
        assert large.planned.plan.as_stored is not small.planned.plan.as_stored

"""What a worker computes is known by its content: whatever changes the numbers behind a model's
name, no tier and no other worker serves what was computed before."""

import errno
import fcntl
import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

from tandem.config.environment import BUNDLED_MODEL
from tandem.config.options import ServeOptions
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.kv import BlockFormat
from tandem.kernels.transfer import choose_transfer
from tandem.kv.tiers.contract import BlockStore
from tandem.kv.tiers.disk import DiskConfig, DiskStore
from tandem.kv.tiers.redis import RedisStore
from tandem.kv.tiers.redis_client import RedisConfig
from tandem.kv.transfer.sources import objection
from tandem.live.processes.model import load_model, plan_model
from tandem.live.processes.worker_rank import PlannedWorker
from tandem.models.content import PIECE_BYTES, checkpoint_weights, digest_file
from tests.attacks.identities import (
    CHANGES,
    WEIGHTS,
    another_download,
    blocks_of,
    copied_model,
    format_of,
    one_bit_in_place,
    planned,
)
from tests.kv.ending import closing
from tests.kv.pool_coordinator import client_of, served
from tests.kv.split_workers import Split, SplitWorker
from tests.kv.tier_blocks import redis_server
from tests.kv.transfer_ranks import SOURCE, TOKENS, Pair


@dataclass(frozen=True)
class Workers:
    """One that served the model before the change, and one that does so after it."""

    before: PlannedWorker
    after: PlannedWorker


@pytest.fixture(scope="module")
def workers(tmp_path_factory) -> dict[str, Workers]:
    found = {}
    for name, change in CHANGES.items():
        folder = copied_model(tmp_path_factory.mktemp("models") / "model")
        before = planned(folder, change.before)
        change.to_folder(folder)
        after = planned(folder, change.after, change.wire_dtype, change.kv_precisions)
        found[name] = Workers(before, after)
    return found


def contents(worker) -> list[np.ndarray]:
    size = format_of(worker).block_bytes
    return [np.full(size, index, dtype=np.uint8) for index, _ in enumerate(blocks_of(worker))]


def room(worker) -> list[np.ndarray]:
    return [np.zeros(format_of(worker).block_bytes, np.uint8) for _ in blocks_of(worker)]


def fill(store: BlockStore, worker) -> None:
    named = blocks_of(worker)
    kept = store.put_blocks(named, contents(worker)).digests
    assert kept == tuple(block.digest for block in named)
    assert store.get_blocks(named, room(worker)).blocks == len(named) > 2


def finds_nothing(store: BlockStore, worker) -> bool:
    # From the first block on, and not one from the middle either.
    return all(not store.get_blocks([one], room(worker)).blocks for one in blocks_of(worker))


@pytest.mark.parametrize("change", CHANGES)
def test_a_disk_does_not_serve_what_was_computed_before(workers, change, tmp_path):
    before, after = workers[change].before, workers[change].after
    config = DiskConfig(tmp_path / "kv" / "w-0.kv", 16)
    with closing(DiskStore(config, format_of(before), choose_transfer())) as store:
        fill(store, before)
    with closing(DiskStore(config, format_of(after), choose_transfer())) as store:
        assert store.stored_blocks() == ()
        assert finds_nothing(store, after)
        fill(store, after)


@pytest.mark.parametrize("change", CHANGES)
def test_a_pool_keeps_both_apart(workers, change):
    """Its process knows no weights: the names of the blocks do."""
    before, after = workers[change].before, workers[change].after
    size = format_of(before).block_bytes
    if format_of(after).block_bytes != size:
        pytest.skip("a worker with blocks of another size does without the pool")
    pooled = BlockFormat(bytes(16), size)
    with served(block_format=pooled) as node, client_of(node, block_format=pooled) as store:
        fill(store, before)
        assert finds_nothing(store, after)
        fill(store, after)


def test_redis_keeps_both_apart(workers, tmp_path):
    pairs = [
        each
        for each in workers.values()
        if format_of(each.before).block_bytes == format_of(each.after).block_bytes
    ]
    with redis_server(tmp_path) as server:
        for number, each in enumerate(pairs):
            config = RedisConfig(server.url, 64, owner=f"pool-{number}")
            pooled = BlockFormat(bytes(16), format_of(each.before).block_bytes)
            store = RedisStore(
                config, pooled, choose_transfer(), time.monotonic_ns, secret=b"the cluster's"
            )
            with closing(store):
                fill(store, each.before)
                assert finds_nothing(store, each.after)


@pytest.mark.parametrize("change", CHANGES)
def test_workers_do_not_read_from_each_other(workers, change):
    before, after = workers[change].before.export, workers[change].after.export
    assert objection(before, before) is None
    assert objection(after, after) is None
    assert "computes other numbers" in (objection(before, after) or "")
    assert "computes other numbers" in (objection(after, before) or "")


@pytest.mark.parametrize("theirs", ["of another model", ""])
def test_what_a_worker_of_other_numbers_offers_is_not_read(theirs):
    with Pair(Split(), Split()) as pair:
        order = pair.order(0, TOKENS)
        pair.source.announce(order)
        assert pair.transfers.move(1, order).arrived
        pair.transfers.transfers.add_source(*SOURCE, replace(pair.source.export, identity=theirs))
        report = pair.transfers.move(2, order)
    assert not report.arrived
    assert "computes other numbers" in report.problem
    assert report.moved_bytes == 0


def test_what_is_not_known_is_like_nothing():
    """Not even like another that is not known."""
    unknown = replace(SplitWorker(Split(), 1).export, identity="")
    assert "identity unknown" in (objection(unknown, unknown) or "")


def test_the_name_says_nothing(workers, tmp_path):
    """The same content in another folder is the same model: what its workers kept is found."""
    other = planned(copied_model(tmp_path / "elsewhere"), ServeOptions())
    plain = workers["int8"].before
    assert other.model.name != plain.model.name
    assert other.model.plan.worker.root == plain.model.plan.worker.root
    assert other.export.identity == plain.export.identity
    # How long answers may be, or how many run at once, changes no number.
    shorter = planned(tmp_path / "elsewhere", ServeOptions(max_model_len=100, max_num_seqs=3))
    assert shorter.model.plan.worker.root == plain.model.plan.worker.root


def test_a_branch_of_the_hub_that_moved_is_another_model(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--somebody--tiny"
    commits = [letter * 40 for letter in "abc"]
    folders = [copied_model(repository / "snapshots" / commit) for commit in commits]
    another_download(folders[1])
    (repository / "refs").mkdir()
    roots = []
    for commit in commits:
        (repository / "refs" / "main").write_text(commit)
        plan = plan_model("somebody/tiny", ServeOptions(threads=1, kv_cache_memory="16MiB")).plan
        roots.append(plan.worker.root)
    assert roots[0] != roots[1]
    # A commit that changed something else.
    assert roots[0] == roots[2]


@pytest.mark.parametrize("change", [another_download, one_bit_in_place])
def test_weights_that_change_while_they_are_loaded_are_refused(tmp_path, change):
    folder = copied_model(tmp_path / "model")
    options = ServeOptions(threads=1, kv_cache_memory="16MiB")
    model = plan_model(str(folder), options)
    load_model(model, options, model.plan.threads)
    change(folder)
    with pytest.raises(InvalidConfiguration, match=r"model\.safetensors changed while it was"):
        load_model(model, options, model.plan.threads)


# Digests


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5])
def test_a_digest_does_not_depend_on_who_makes_it(tmp_path, size):
    file = tmp_path / "file"
    file.write_bytes(b"\x07" * size)
    assert digest_file(file, 1) == digest_file(file, 3)
    longer = tmp_path / "longer"
    longer.write_bytes(b"\x07" * (size + 1))
    assert digest_file(longer, 2) != digest_file(file, 2)


def kept(cache: Path) -> Path:
    (record,) = cache.glob("*.json")
    return record


def forge(cache: Path) -> None:
    """Another digest in the record: whoever believes it has not read the weights."""
    record = kept(cache)
    known = json.loads(record.read_text())
    record.write_text(json.dumps(known | {"digest": "forged"}))


def test_weights_that_did_not_change_are_read_once(tmp_path):
    cache = tmp_path / "digests"
    read = checkpoint_weights(BUNDLED_MODEL, cache, 1).digest
    assert kept(cache).stat().st_mode & 0o777 == 0o600
    assert cache.stat().st_mode & 0o777 == 0o700
    assert checkpoint_weights(BUNDLED_MODEL, cache, 1).digest == read
    forge(cache)
    assert checkpoint_weights(BUNDLED_MODEL, cache, 1).digest != read


@pytest.mark.parametrize("change", ["lent", "linked", "twice", "given away", "garbled"])
def test_a_record_that_another_could_have_written_is_not_believed(tmp_path, change):
    read = checkpoint_weights(BUNDLED_MODEL, tmp_path, 1).digest
    forge(tmp_path)
    record = kept(tmp_path)
    match change:
        case "lent":
            record.chmod(0o644)
        case "linked":
            record.rename(record.with_suffix(".away"))
            record.symlink_to(record.with_suffix(".away"))
        case "twice":
            os.link(record, record.with_suffix(".second"))
        case "given away":
            if os.geteuid():
                pytest.skip("only root can give a file away")
            os.chown(record, 65_534, 65_534)
        case "garbled":
            record.write_bytes(record.read_bytes()[:-5])
    assert checkpoint_weights(BUNDLED_MODEL, tmp_path, 1).digest == read


def test_weights_that_have_just_been_written_are_read_again(tmp_path):
    """Within a tick of the clock they might change once more and look the same."""
    folder = copied_model(tmp_path / "model")
    (folder / WEIGHTS).touch()
    checkpoint_weights(folder, tmp_path / "digests", 1)
    assert not list((tmp_path / "digests").glob("*.json"))


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path):
    (tmp_path / "file").touch()
    nowhere = tmp_path / "file" / "digests"
    read = checkpoint_weights(BUNDLED_MODEL, tmp_path, 1)
    assert checkpoint_weights(BUNDLED_MODEL, nowhere, 1) == read


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_costs_time_only(tmp_path, monkeypatch, number):
    def refused(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    read = checkpoint_weights(BUNDLED_MODEL, tmp_path / "locked", 1)
    monkeypatch.setattr(fcntl, "flock", refused)
    assert checkpoint_weights(BUNDLED_MODEL, tmp_path / "unlocked", 1) == read


def test_which_tensor_lies_in_which_file_is_content(tmp_path):
    """An index may point elsewhere though no file of weights has changed."""
    for folder, places in (("one", ("a", "b")), ("two", ("b", "a"))):
        (tmp_path / folder).mkdir()
        for file in ("a", "b"):
            (tmp_path / folder / f"{file}.safetensors").write_bytes(file.encode())
        index = {"weight_map": {n: f"{f}.safetensors" for n, f in zip("xy", places, strict=True)}}
        (tmp_path / folder / "model.safetensors.index.json").write_text(json.dumps(index))
    one, two = (checkpoint_weights(tmp_path / name, tmp_path, 1) for name in ("one", "two"))
    assert one.digest != two.digest
    assert len(one.files) == 3

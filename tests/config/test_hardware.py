"""From a user's words to a worker's prices, and every way in which the words can be wrong."""

import json
from dataclasses import replace

import pytest

from tandem.config.hardware.worker import (
    DEVICES,
    WorkerHardware,
    bundled_devices,
    kv_blocks,
    load_device,
    load_model_shape,
    worker_cost,
)
from tandem.cost.fitted import FittedStepTime, to_fields
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Tier

LLAMA = WorkerHardware("llama-3.1-8b", "h100")
EXPECTED_DEVICES = {
    "a100",
    "h100",
    "h200",
    "b200",
    "gb200",
    "mi300x",
    "l40s",
    "rtx_pro_6000",
    "cpu",
}


def test_the_bundled_datasheets_are_read_and_sane():
    assert set(bundled_devices()) == EXPECTED_DEVICES
    for name in bundled_devices():
        device = load_device(name)
        assert device.name == name
        assert 0 < device.power.idle_w < device.power.decode_w <= device.power.prefill_w
        assert device.usd_per_hour > 0
        assert kv_blocks(WorkerHardware("tandem-mini", name)) > 0


def test_every_figure_of_a_datasheet_names_its_source():
    for path in DEVICES.glob("*.yaml"):
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            figure = value.strip() and not line.startswith("#") and key.strip() != "name"
            if figure and key.strip() not in ("idle_w", "decode_w"):
                assert "  # " in value, f"{path.name}: {line}"


def test_a_worker_of_eight_moves_kv_over_eight_links():
    cost = worker_cost(replace(LLAMA, tensor_parallel=8))
    assert cost.kv_bytes_per_token == 65_536 * 2
    assert cost.tiers[Tier.HOST].bytes_per_s == 8 * 64e9
    # What Mooncake reached over 8 x 400 Gb/s.
    assert cost.network.bytes_per_s == pytest.approx(192e9)
    assert cost.tiers[Tier.REMOTE] == cost.network


def test_fewer_bits_are_quicker_and_leave_more_room():
    fp8 = replace(LLAMA, weight_precision="fp8", kv_precision="fp8")
    slow, quick = worker_cost(LLAMA), worker_cost(fp8)
    assert quick.kv_bytes_per_token == slow.kv_bytes_per_token / 2
    assert quick.decode_seconds(8, 8000) < 0.6 * slow.decode_seconds(8, 8000)
    assert kv_blocks(fp8) > 2 * kv_blocks(LLAMA)


def test_a_profile_is_a_time_model(tmp_path):
    fitted = FittedStepTime(fixed_s=0.01, token_s=1e-4)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"fitted": to_fields(fitted)}))
    cost = worker_cost(replace(LLAMA, time_model="profile", profile=str(path)))
    assert cost.step_time == fitted


def test_shapes_and_datasheets_may_be_files(tmp_path):
    config = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 100,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    sheet = tmp_path / "mine.yaml"
    sheet.write_text((DEVICES / "h100.yaml").read_text().replace("name: h100", "name: mine"))
    assert load_model_shape(str(tmp_path)).label == tmp_path.name
    assert load_model_shape(str(tmp_path / "config.json")).parameters > 0
    (tmp_path / "model.safetensors").touch()
    assert load_model_shape(str(tmp_path / "model.safetensors")).label == tmp_path.name
    with pytest.raises(
        InvalidConfiguration, match=r"there is no .*model\.gguf'; expected .* or a GGUF"
    ):
        load_model_shape(str(tmp_path / "model.gguf"))
    assert load_device(str(sheet)).name == "mine"
    worker_cost(WorkerHardware(str(tmp_path), str(sheet)))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model": "nobody"}, "model: there is no 'nobody'; expected .* one of bloom-176b"),
        ({"device": "h900"}, "device: there is no 'h900'; expected .* one of a100, b200"),
        ({"chunk_tokens": 0}, "chunk_tokens is 0"),
        ({"time_model": "oracle"}, "time_model is 'oracle'; expected one of roofline, tables"),
        ({"time_model": "tables"}, "time_model tables needs tables"),
        ({"time_model": "profile"}, "time_model profile needs profile"),
        ({"time_model": "profile", "profile": "none.json"}, "none.json cannot be read"),
    ],
)
def test_errors_name_field_value_and_remedy(change, problem):
    with pytest.raises(InvalidConfiguration, match=problem):
        worker_cost(replace(LLAMA, **change))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("gemm: 0.80", "gemm: 1.80", "efficiency.gemm is 1.8"),
        ("bf16: 989.0e+12", "bf16: 0.0", "flops_per_s.bf16 is 0.0"),
        ("memory_bytes: 85.899e+9", "memory_bytes: lots", "Expected `float`, got `str`"),
    ],
)
def test_a_bad_datasheet_is_refused(tmp_path, old, new, problem):
    sheet = tmp_path / "bad.yaml"
    sheet.write_text((DEVICES / "h100.yaml").read_text().replace(old, new))
    with pytest.raises(InvalidConfiguration, match=problem):
        load_device(str(sheet))

"""A merged checkpoint computes what the adapter beside the model does."""

import os
from pathlib import Path

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from transformers import AutoModelForCausalLM

from tandem.facts.errors import InvalidConfiguration
from tandem.models.configuration import read_model_spec
from tandem.models.load import LoadPlan, load_adapter, load_decoder
from tandem.models.merging import merge_adapter
from tests.commands.cli import tandem
from tests.models.adapter_files import write_adapter
from tests.models.paging import Chunk, batch_of
from tests.models.test_adapters import CPU, FP32, TOKENS, TOLERANCE, adapted, logits_of
from tests.models.test_logits import shuffled_blocks, tokens_of
from tests.models.tiny import VARIANTS, build


@pytest.mark.parametrize("name", ["llama2_sharded", "qwen2", "gemma"])
def test_it_computes_what_the_adapter_does(name: str, kernels, tmp_path: Path) -> None:
    base, folder, out = (tmp_path / each for each in ("base", "adapter", "merged"))
    build(VARIANTS[name], base)
    (base / "tokenizer.json").write_text("{}")
    (base / "chat_template.jinja").write_text("{{ messages }}")
    (base / "secret.bin").write_text("not copied")
    spec = read_model_spec(base)
    adapter = write_adapter(folder, spec, rank=6, targets=("q_proj", "o_proj", "up_proj"))
    merged = tandem("merge", base, folder, out)
    assert merged.exit_code == 0, merged.output
    assert "6 matrices merged" in merged.output
    decoder = load_decoder(spec, LoadPlan(base, FP32), kernels)
    weights = load_adapter(spec, adapter, kernels, CPU)
    tokens = tokens_of(1, TOKENS)
    batch = batch_of([Chunk(tokens, shuffled_blocks(2, count=TOKENS), 0, TOKENS)])
    wanted = logits_of(decoder, adapted(decoder, batch, [weights], [0] * TOKENS))
    whole = load_decoder(read_model_spec(out), LoadPlan(out, FP32), kernels)
    torch.testing.assert_close(logits_of(whole, batch), wanted, atol=TOLERANCE, rtol=0)
    assert (logits_of(decoder, batch) - wanted).abs().max() > 100 * TOLERANCE
    # And others read it alike.
    with torch.inference_mode():
        theirs = AutoModelForCausalLM.from_pretrained(out)(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(theirs, wanted, atol=TOLERANCE, rtol=0)
    names = {path.name for path in out.iterdir()}
    assert {"tokenizer.json", "chat_template.jinja", "config.json"} < names
    assert "secret.bin" not in names


def test_weights_keep_their_precision(tmp_path: Path) -> None:
    base, folder, out = (tmp_path / each for each in ("base", "adapter", "merged"))
    build(VARIANTS["llama3"], base).to(torch.bfloat16).save_pretrained(base)
    write_adapter(folder, read_model_spec(base))
    merge_adapter(base, folder, out)
    assert (out / "model.safetensors").stat().st_size == (base / "model.safetensors").stat().st_size


def test_what_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    base, other = tmp_path / "base", tmp_path / "other"
    build(VARIANTS["llama3"], base)
    build(VARIANTS["qwen3"], other)
    write_adapter(tmp_path / "adapter", read_model_spec(other))
    with pytest.raises(InvalidConfiguration, match="trained for another one"):
        merge_adapter(base, tmp_path / "adapter", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InvalidConfiguration, match="exists already"):
        merge_adapter(base, tmp_path / "adapter", other)
    failed = tandem("merge", base, tmp_path / "nowhere", tmp_path / "out")
    assert failed.exit_code == 2
    assert "is no directory" in failed.output

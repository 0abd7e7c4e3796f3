"""`tandem compress`: a folder that others read, a report, and one line for what is wrong."""

import json
import shutil
from pathlib import Path

import pytest

from tandem.commands.compression_texts import (
    Sample,
    TextBudget,
    TextEncoder,
    gather_texts,
    read_samples,
    task_samples,
)
from tandem.config.environment import BUNDLED_MODEL
from tandem.facts.errors import InvalidConfiguration
from tests.commands.cli import tandem
from tests.models.tiny import Variant, build

TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
FEW = ("--calibration-tokens", 300, "--held-out-tokens", 150)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Two random layers with the tokenizer and template of the bundled model."""
    folder = tmp_path_factory.mktemp("tiny")
    build(Variant("qwen3", {"vocab_size": 2560, "num_key_value_heads": 2, "head_dim": 16}), folder)
    for name in TEXT_FILES:
        shutil.copyfile(BUNDLED_MODEL / name, folder / name)
    return folder


def test_a_folder_and_its_report(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = ("--to", "w4a16", "--group-size", 32, "--out", out, *FEW)
    result = tandem("compress", model, *flags)
    assert result.exit_code == 0, result.output
    assert "w4a16 by gptq, groups of 32" in result.stdout
    report = json.loads((out / "compression.json").read_text())
    assert report["wanted"]["scheme"]["group_size"] == 32
    assert report["calibration"] == "tasks"
    assert 0 < report["calibration_tokens"] <= 300
    assert report["bytes_after"] == (out / "model.safetensors").stat().st_size
    assert f"{report['quality']['mean_error']:.3g}" in result.stdout
    for name in TEXT_FILES:
        assert (out / name).read_bytes() == (model / name).read_bytes()
    config = json.loads((out / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"


def test_zeros_are_served_and_asked_beside_the_original(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ("--eval", "--tasks", "tool-call", "--samples", 1)
    result = tandem("compress", model, "--sparsity", "0.5", "--out", out, *FEW, *asked)
    assert result.exit_code == 0, result.output
    assert "50% of the weights zero by wanda" in result.stdout
    (suite,) = json.loads((out / "compression.json").read_text())["suites"]
    assert suite["task"] == "tool-call"
    assert suite["n"] == 1
    assert suite["before"]["wilson_95"][0] == 0.0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "give either --to or --sparsity"),
        (["--to", "int8", "--sparsity", "0.5"], "give either --to or --sparsity"),
        (["--to", "int8", "--method", "smoothquant"], "--method smoothquant moves"),
        (["--to", "int8", "--asymmetric"], "--asymmetric: int8 has no zero points"),
        (["--to", "w4a16"], "--group-size is 128; expected a divisor of the 64 inputs"),
        (["--sparsity", "1.5"], "--sparsity is '1.5'; expected a share"),
        (["--sparsity", "half"], "--sparsity is 'half'; expected a share"),
        (["--to", "int8", "--tasks", "poetry"], "--tasks knows recall-1k"),
        (["--to", "int8", "--calibration", "nowhere.txt"], "nowhere.txt cannot be read"),
    ],
)
def test_what_is_wrong_is_one_line(flags, said: str, model: Path, tmp_path: Path) -> None:
    result = tandem("compress", model, "--out", tmp_path / "out", *flags, *FEW)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_is_never_overwritten(model: Path, tmp_path: Path) -> None:
    result = tandem("compress", model, "--to", "int8", "--out", tmp_path)
    assert result.exit_code == 2
    assert "exists already" in result.stderr


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    return TextEncoder(BUNDLED_MODEL)


def test_one_text_in_five_is_held_out_and_only_replies_are_judged(encoder: TextEncoder) -> None:
    budget = TextBudget(2000, 1000, 512)
    texts = gather_texts(task_samples(encoder, 0), encoder, budget)
    assert sum(len(text.ids) for text in texts.calibration) == 2000
    assert 700 < sum(len(text.ids) for text in texts.held_out) <= 1000
    for text in texts.held_out[:-1]:
        asked = encoder.tokenizer.decode(text.ids[: text.first], skip_special_tokens=False)
        said = encoder.tokenizer.decode(text.ids[text.first :], skip_special_tokens=False)
        assert asked.endswith("<|im_start|>assistant\n")
        assert said.endswith("<|im_end|>\n")
    shared = {text.ids for text in texts.calibration} & {text.ids for text in texts.held_out}
    assert not shared
    same = gather_texts(task_samples(encoder, 0), encoder, budget)
    assert same == texts
    assert gather_texts(task_samples(encoder, 1), encoder, budget) != texts


def test_files_of_chats_and_texts(encoder: TextEncoder, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    chat = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hi there."}]
    path.write_text(
        "\n".join(map(json.dumps, ["A plain string.", {"text": "A text."}, {"messages": chat}]))
    )
    string, text, spoken = read_samples(path)
    unanswered = encoder.encode(Sample("here", messages=chat[:1]))
    assert unanswered.first == 0
    assert "Hello!" in encoder.tokenizer.decode(unanswered.ids)
    assert (string.text, text.text) == ("A plain string.", "A text.")
    found = encoder.encode(spoken)
    said = encoder.tokenizer.decode(found.ids[found.first :], skip_special_tokens=True)
    assert said.strip() == "Hi there."
    assert encoder.encode(text).first == 0


def test_plain_text_is_cut_between_lines(encoder: TextEncoder, tmp_path: Path) -> None:
    path = tmp_path / "story.txt"
    path.write_text("".join(f"Line {number} of a long story.\n" for number in range(1000)))
    samples = list(read_samples(path))
    assert "".join(sample.text for sample in samples) == path.read_text()
    assert all(sample.text.startswith("Line") for sample in samples)
    texts = gather_texts(iter(samples), encoder, TextBudget(10_000, 1000, 256))
    assert max(len(text.ids) for text in texts.calibration) == 256
    assert {text.first for text in texts.held_out} == {1}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("no json", "line 1 is no JSON"),
        ('{"text": "a"}\n{"words": 3}', "line 2 is neither a string nor an object"),
        ('{"messages": [{"role": "user"}]}', "line 1: messages"),
        ('"Too few texts to hold one of them out."', "has 1 texts of 8 tokens or more"),
    ],
)
def test_a_bad_file_is_named_with_its_line(
    content: str, said: str, encoder: TextEncoder, tmp_path: Path
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidConfiguration, match=said):
        gather_texts(read_samples(path), encoder, TextBudget(100, 100, 64))


def test_too_few_tokens_to_judge_by_are_said(encoder: TextEncoder) -> None:
    samples = task_samples(encoder, 0)
    with pytest.raises(InvalidConfiguration, match="--held-out-tokens is 5"):
        gather_texts(samples, encoder, TextBudget(300, 5, 512))


def test_tasks_with_tools_are_left_out_where_the_template_knows_none(tmp_path: Path) -> None:
    for name in TEXT_FILES[:2]:
        shutil.copyfile(BUNDLED_MODEL / name, tmp_path / name)
    (tmp_path / "chat_template.jinja").write_text(
        "{% if tools %}{{ raise_exception('no tools') }}{% endif %}"
        "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    )
    samples = task_samples(TextEncoder(tmp_path), 0)
    drawn = [next(samples) for _ in range(9)]
    assert not any(sample.tools for sample in drawn)
    assert len({len(sample.messages) for sample in drawn}) == 1


def test_without_a_template_the_contents_stand_below_each_other(tmp_path: Path) -> None:
    for name in TEXT_FILES[:2]:
        shutil.copyfile(BUNDLED_MODEL / name, tmp_path / name)
    plain = TextEncoder(tmp_path)
    chat = Sample("here", messages=[{"content": "One."}, {"content": "Two."}])
    assert plain.tokenizer.decode(plain.encode(chat).ids) == "One.\nTwo."

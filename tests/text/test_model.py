"""What a checkpoint directory says is read once, checked, and told clearly when it is wrong."""

import asyncio
import json
from pathlib import Path
from typing import get_args

import pytest
import tokenizers
from tokenizers import processors

from tandem.config.options import ReasoningParser, ToolCallParser
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.sampling import SamplingParameters
from tandem.text.call_markup import CLOSE_TAG, DEEPSEEK_CALL, OPEN_TAG
from tandem.text.model import TextModel
from tandem.text.reasoning import ReasoningFormat
from tandem.text.tokenizer import Tokenizer
from tandem.text.tool_calls import ToolFormat
from tests.text.tiny_checkpoint import write_checkpoint


def test_a_checkpoint_is_read(text: TextModel):
    assert text.defaults == SamplingParameters(temperature=0.7, top_k=20)
    assert text.tokenizer.end_token_ids == (0, 2)
    assert text.tokenizer.special_tokens["eos_token"] == "<|im_end|>"
    assert text.tokenizer.special_token_ids == {0, 1, 2}
    assert text.tool_format is ToolFormat.HERMES
    assert text.chat is not None


def test_specials_are_read_as_tokens_and_left_out_of_text(text: TextModel):
    tokens = text.tokenizer.encode("<|im_start|>hello<|im_end|>", add_special_tokens=False)
    assert tokens[0] == 1
    assert tokens[-1] == 2
    assert text.tokenizer.decode(tokens) == "hello"
    assert text.tokenizer.decode(tokens, skip_special_tokens=False).startswith("<|im_start|>")


@pytest.mark.parametrize(
    ("flag", "post_processed", "first"),
    [(True, False, 0), (True, True, 0), (False, True, None), (None, True, 0), (None, False, None)],
)
def test_bos_follows_the_configuration(tmp_path, flag, post_processed, first):
    directory = write_checkpoint(tmp_path, add_bos_token=flag)
    if post_processed:
        core = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        core.post_processor = processors.TemplateProcessing(
            "<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
        core.enable_truncation(2)
        core.save(str(directory / "tokenizer.json"))
    tokenizer = Tokenizer.load(directory)
    tokens = tokenizer.encode("hello world again", add_special_tokens=True)
    assert tokens.count(0) == (0 if first is None else 1)
    assert first is None or tokens[0] == first
    assert tokenizer.decode(tokens) == "hello world again"


def test_a_template_file_wins_over_the_configuration(directory: Path):
    (directory / "chat_template.jinja").write_text('{"name": "parameters"} {{ messages }}')
    model = TextModel.load(directory)
    assert model.tool_format is None or model.tool_format is ToolFormat.LLAMA3_JSON
    assert model.chat is not None
    assert not model.chat.uses_tools


def test_named_templates_and_no_template(tmp_path):
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "{{ tools }}"}]
    directory = write_checkpoint(tmp_path, chat_template=named)
    model = TextModel.load(directory)
    assert model.chat is not None
    assert model.chat.uses_tools
    assert TextModel.load(write_checkpoint(tmp_path, chat_template=None)).chat is None


def test_call_tags_survive_where_they_are_special(directory: Path):
    core = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    content = json.loads(core.to_str())
    for token in content["added_tokens"]:
        token["special"] = True
    (directory / "tokenizer.json").write_text(json.dumps(content))
    model = TextModel.load(directory)
    tokens = model.tokenizer.encode("<tool_call>{}</tool_call><|im_end|>", add_special_tokens=False)
    assert model.detokenizer(skip_special_tokens=True).add_tokens(tokens) == "{}"
    keeping = model.detokenizer(skip_special_tokens=True, kept_tags=[OPEN_TAG, CLOSE_TAG])
    assert keeping.add_tokens(tokens) == "<tool_call>{}</tool_call>"


@pytest.mark.parametrize(
    ("template", "tool_format", "reasoning"),
    [
        ("{{ tools }}<tool_call>", ToolFormat.HERMES, None),
        ("{{ tools }}<tool_call><think></think>", ToolFormat.HERMES, ReasoningFormat.QWEN3),
        ("{{ tools }}[TOOL_CALLS]", ToolFormat.MISTRAL, None),
        ("{{ tools }}" + DEEPSEEK_CALL, ToolFormat.DEEPSEEK_V31, None),
        ("{{ tools }}```json" + DEEPSEEK_CALL + "</think>", ToolFormat.DEEPSEEK_V3, None),
        ('{{ tools }}{"name": , "parameters": }', ToolFormat.LLAMA3_JSON, None),
        ("{{ messages }}", None, None),
    ],
)
def test_formats_follow_from_the_template(directory, template, tool_format, reasoning):
    (directory / "chat_template.jinja").write_text(template)
    model = TextModel.load(directory)
    assert (model.tool_format, model.reasoning) == (tool_format, reasoning)


def test_formats_may_be_named(directory):
    model = TextModel.load(directory, tool_call_parser="mistral", reasoning_parser="deepseek_r1")
    assert model.tool_format is ToolFormat.MISTRAL
    assert model.reasoning is ReasoningFormat.DEEPSEEK_R1
    model = TextModel.load(directory, tool_call_parser="none", reasoning_parser="none")
    assert (model.tool_format, model.reasoning) == (None, None)


def test_every_format_has_an_option():
    assert set(get_args(ToolCallParser)) == {"auto", "none", *ToolFormat}
    assert set(get_args(ReasoningParser)) == {"auto", "none", *ReasoningFormat}


def test_a_checkpoint_that_does_not_sample_is_greedy(directory: Path):
    (directory / "generation_config.json").write_text('{"do_sample": false}')
    assert TextModel.load(directory).defaults.temperature == 0.0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "[1]"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", b"\xff"),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}'),
        ("generation_config.json", '{"temperature": -1}'),
        ("generation_config.json", '{"top_k": 1.5e99}'),
    ],
)
def test_broken_files_are_named(directory: Path, name: str, content: str | bytes):
    data = content.encode() if isinstance(content, str) else content
    (directory / name).write_bytes(data)
    with pytest.raises(InvalidConfiguration):
        TextModel.load(directory)


def test_a_directory_without_tokenizer_is_refused(tmp_path: Path):
    with pytest.raises(InvalidConfiguration, match=r"tokenizer\.json"):
        TextModel.load(tmp_path)


def test_tokenising_in_a_thread_leaves_the_event_loop_running(text: TextModel):
    async def count_turns() -> int:
        work = asyncio.ensure_future(
            asyncio.to_thread(text.tokenizer.encode, "hello " * 200_000, add_special_tokens=False)
        )
        turns = 0
        while not work.done():
            await asyncio.sleep(0.001)
            turns += 1
        return turns

    assert asyncio.run(count_turns()) > 5

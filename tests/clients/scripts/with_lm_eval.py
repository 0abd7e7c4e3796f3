"""lm-evaluation-harness: answers, and the likelihood of given ones, of tasks that lie here."""

import json
import math

from outcomes import URL, check, not_offered, report
from programs import FOLDER, ProgramFailed, run

# settings
CHAT = f"""
lm_eval --model local-chat-completions --apply_chat_template
  --model_args model=tandem-mini,base_url={URL}/v1/chat/completions
"""
COMPLETIONS = f"""
lm_eval --model local-completions
  --model_args model=tandem-mini base_url={URL}/v1/completions
  tokenizer_backend=remote max_length=4096
"""
# end of settings

SUMS = [(12, 30), (123, 456), (345, 271), (58, 67)]
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in SUMS]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/rows.jsonl}}}}
test_split: test
output_type: {kind}
{rest}
"""
GENERATING = """
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {temperature: 0, max_gen_toks: 64, until: ["</s>"]}
filter_list:
  - name: answer
    filter: [{function: regex, regex_pattern: "Answer: (.*)"}, {function: take_first}]
metric_list: [{metric: exact_match}]
"""
CHOOSING = """
doc_to_text: "Hello! How can I"
doc_to_target: 0
doc_to_choice: ["help you today?", "garden the lamp."]
metric_list: [{metric: acc}]
"""
ROLLING = """
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: bits_per_byte}]
"""


def results(command: str, kind: str, rest: str) -> dict[str, float]:
    """Of a task with these rows, by metric."""
    (FOLDER / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    text = TASK.format(name=kind, folder=FOLDER, kind=kind, rest=rest)
    (FOLDER / f"{kind}.yaml").write_text(text)
    run(f"{command} --tasks {kind} --include_path {FOLDER} --output_path {kind}.json")
    (written,) = FOLDER.glob(f"{kind}_*.json")
    return json.loads(written.read_text())["results"][kind]


@check("text")
def generating():
    assert results(CHAT, "generate_until", GENERATING)["exact_match,answer"] == 1


@check("errors")
def errors():
    unknown = CHAT.replace("model=tandem-mini", "model=another,max_retries=1")
    try:
        results(unknown, "generate_until", GENERATING)
    except ProgramFailed as failure:
        assert "404 Client Error" in str(failure), failure
    else:
        raise AssertionError("nothing was refused")


@check("log-probabilities")
def likelihood_of_choices():
    assert results(COMPLETIONS, "multiple_choice", CHOOSING)["acc,none"] == 1


@check("log-probabilities")
def likelihood_of_texts():
    bits = results(COMPLETIONS, "loglikelihood_rolling", ROLLING)["bits_per_byte,none"]
    assert math.isfinite(bits) and bits > 0


for feature in ("stream", "tools", "structured output", "cancellation"):
    not_offered(feature, "it evaluates")

report("lm-eval")

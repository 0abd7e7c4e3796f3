"""GuideLLM: a load of synthetic prompts over several APIs, and how long their answers take."""

import json

from outcomes import URL, aborted, check, not_offered, report
from programs import FOLDER, TOKENIZER, run

# settings
COMMAND = f"""
guidellm run
  --backend kind=openai_http,target={URL},model=tandem-mini,request_format=/v1/chat/completions
  --tokenizer kind=hf_auto,model={TOKENIZER}
  --data kind=synthetic_text,prompt_tokens=64,output_tokens=16
  --profile kind=concurrent,streams=2 --constraint kind=max_requests,count=8
  --output kind=json,path=report.json --disable-console
"""
# end of settings


def measure(command: str) -> dict:
    run(command)
    (measured,) = json.loads((FOLDER / "report.json").read_text())["benchmarks"]
    return measured["metrics"]


def measure_answers(path: str, *options: str) -> dict:
    """Eight requests have answers of sixteen tokens, and no other request was made."""
    metrics = measure(COMMAND.replace("/v1/chat/completions", ",".join([path, *options])))
    totals = metrics["request_totals"]
    assert (totals["successful"], totals["total"]) == (8, 8), totals
    tokens = metrics["output_token_count"]["successful"]
    assert (tokens["min"], tokens["max"]) == (16, 16)
    return metrics


@check("text")
def text():
    measure_answers("/v1/chat/completions", "stream=false")


@check("stream")
def stream():
    metrics = measure_answers("/v1/chat/completions")
    assert metrics["time_to_first_token_ms"]["successful"]["mean"] > 0


@check("errors")
def errors():
    totals = measure(COMMAND.replace("model=tandem-mini", "model=another"))["request_totals"]
    assert (totals["errored"], totals["total"]) == (8, 8), totals


@check("cancellation")
def cancellation():
    """Of what is on its way when the time is over."""
    brief = COMMAND.replace("kind=max_requests,count=8", "kind=max_duration,seconds=2")
    with aborted():
        measure(brief.replace("output_tokens=16", "output_tokens=3000"))


@check("completions")
def completions():
    measure_answers("/v1/completions")


@check("responses")
def responses():
    measure_answers("/v1/responses")


for feature in ("tools", "structured output"):
    not_offered(feature, "it measures")

report("guidellm")

"""AIPerf: a load of synthetic prompts over each API, and how long their answers take."""

import json

from outcomes import URL, aborted, check, not_offered, report
from programs import FOLDER, TOKENIZER, ProgramFailed, run

# settings
COMMAND = f"""
aiperf profile --url {URL} --model tandem-mini --tokenizer {TOKENIZER}
  --endpoint-type chat --streaming --concurrency 2 --request-count 8
  --isl 64 --osl 16 --extra-inputs ignore_eos:true --use-server-token-count --ui none
"""
# end of settings
EXPORT = FOLDER / "profile_export_aiperf.json"


def measure(command: str) -> dict:
    run(f"{command} --output-artifact-dir {FOLDER}")
    measured = json.loads(EXPORT.read_text())
    EXPORT.unlink()
    return measured


def measure_answers(command: str) -> None:
    """Eight requests have answers of sixteen tokens, and none has failed."""
    measured = measure(command)
    assert measured["request_count"]["avg"] == 8
    assert not measured["error_summary"], measured["error_summary"]
    assert measured["output_sequence_length"]["max"] == 16


@check("text")
def text():
    measure_answers(COMMAND.replace("--streaming", ""))


@check("stream")
def stream():
    measure_answers(COMMAND)


@check("errors")
def errors():
    measure_nothing(COMMAND.replace("--model tandem-mini", "--model another"))


@check("cancellation")
def cancellation():
    leaving = "--request-cancellation-rate 100 --request-cancellation-delay 0.5"
    with aborted():
        measure_nothing(COMMAND.replace("--osl 16", f"--osl 3000 {leaving}"))


def measure_nothing(command: str) -> None:
    try:
        measure(command)
    except ProgramFailed as failure:
        assert "All 8 inference request(s) failed" in str(failure), failure
    else:
        raise AssertionError("some had answers")


@check("completions")
def completions():
    measure_answers(COMMAND.replace("--endpoint-type chat", "--endpoint-type completions"))


@check("responses")
def responses():
    """It counts tokens itself: of responses that end at a limit it does not read the server's."""
    command = COMMAND.replace("--use-server-token-count", "")
    measured = measure(command.replace("--endpoint-type chat", "--endpoint-type responses"))
    assert measured["request_count"]["avg"] == 8
    assert not measured["error_summary"], measured["error_summary"]
    assert measured["output_sequence_length"]["avg"] > 8


@check("messages")
def messages():
    measure_answers(
        COMMAND.replace("--endpoint-type chat", "--endpoint-type messages").replace(
            "--extra-inputs ignore_eos:true", ""
        )
    )


@check("embeddings")
def embeddings():
    command = f"""
aiperf profile --url {URL} --model vectors --tokenizer {TOKENIZER} --endpoint-type embeddings
  --concurrency 2 --request-count 8 --isl 16 --ui none
"""
    assert measure(command)["request_count"]["avg"] == 8


for feature in ("tools", "structured output"):
    not_offered(feature, "it measures")

report("aiperf")

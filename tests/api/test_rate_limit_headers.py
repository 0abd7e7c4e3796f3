"""Headers that tell what rate limits leave, as OpenAI writes them."""

import pytest

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.api.rate_limit_headers import duration_text
from tandem.facts.errors import Overloaded
from tandem.facts.rate_limits import Allowance, Budget
from tests.api.server import client_of


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0201, "21ms"),
        (1, "1s"),
        (7.66, "7.66s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (3605.5, "1h0m5.5s"),
    ],
)
def test_a_duration_is_written_as_clients_know_it(seconds, text):
    assert duration_text(seconds) == text


def test_streams_answers_and_refusals_carry_what_is_left_when_they_begin(generator, text):
    generator.allowances["acme"] = Allowance(tokens=Budget(1000, 7, 59.58))
    config = ApiConfig(tenants={"acme-key": "acme", "other-key": "other"})
    with client_of(build_app(generator, text, config)) as client:
        for stream, failure in ((True, None), (False, None), (True, Overloaded("busy", 1.0))):
            generator.script.failure = failure
            answers = [
                client.post(
                    "/v1/completions",
                    json={"prompt": "hello", "stream": stream},
                    headers={"Authorization": f"Bearer {key}"},
                )
                for key in ("acme-key", "other-key")
            ]
            assert [each.status_code for each in answers] == [429 if failure else 200] * 2
            told = [
                {k: v for k, v in each.headers.items() if k.startswith("x-ratelimit")}
                for each in answers
            ]
            assert told == [
                {
                    "x-ratelimit-limit-tokens": "1000",
                    "x-ratelimit-remaining-tokens": "7",
                    "x-ratelimit-reset-tokens": "59.58s",
                },
                {},
            ]
    generator.allowances.clear()

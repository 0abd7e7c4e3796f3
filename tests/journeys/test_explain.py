"""`tandem explain` on a running cluster: the story of a request whose worker was killed."""

import json
import os
import signal

from tests.journeys.clusters import cluster

CLUSTER = """
model: tandem-mini
block_size: 16
serve: {port: 0, max-num-seqs: 16, kv-cache-memory: 64MiB, threads: 1}
pools:
  - {name: prefill, role: prefill, device: cpu}
  - {name: decode, role: decode, device: cpu, count: 2}
policies: {dispatch: remote}
"""


# A second of work and more: it runs when its worker is killed.
TOKENS = 600


def test_a_request_that_was_taken_up_again_tells_why(tmp_path):
    with cluster(CLUSTER, tmp_path) as running:
        pids = running.pids
        stream = running.client.chat.completions.create(
            model="tandem-mini",
            messages=[{"role": "user", "content": "Tell me about bread."}],
            max_tokens=TOKENS,
            temperature=1.0,
            seed=3,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        first = next(iter(stream))
        (history,) = json.loads(running.succeed("explain", first.id, "--json"))
        assert history["ending"] == ""
        routing = next(each for each in history["events"] if each["kind"] == "routing")
        busy = routing["text"].rpartition(" ")[2]
        os.kill(pids[busy], signal.SIGKILL)
        for _ in stream:
            pass
        (history,) = json.loads(running.succeed("explain", first.id, "--json"))
        routes = [each["text"] for each in history["events"] if each["kind"] == "routing"]
        assert len(routes) == 2
        assert f"decode on {busy}" in routes[0]
        assert f"decode on {busy}" not in routes[1]
        assert (history["ending"], history["emitted_tokens"]) == ("finished", TOKENS)
        shown = running.succeed("explain", first.id)
        assert "measured" in shown
        for text in ("finished: length", "prefill prefill-0: score", "first token", *routes):
            assert text in shown
        # A stop string ends the work early, which is no leaving of a client.
        raw = running.client.completions.with_raw_response.create(
            model="tandem-mini",
            prompt="Tell me about bread.",
            max_tokens=TOKENS,
            stop=[" "],
            extra_body={"ignore_eos": True},
        )
        (history,) = json.loads(running.succeed("explain", raw.headers["x-request-id"], "--json"))
        assert (history["ending"], history["reason"]) == ("finished", "stop")
        assert history["request_id"].endswith(f"{raw.parse().id}-0")
        refused = running.operate("explain", "nobody")
        assert refused.returncode == 2
        assert "nobody: no gateway knows it" in refused.stderr

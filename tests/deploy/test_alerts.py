"""The rules for Prometheus: promtool reads them, and each alert fires when it should and at no
other time."""

from dataclasses import dataclass, field

import yaml

from tests.deploy.prometheus import CONFIG, RULES, alerts, promtool

HOURS = 60
OF_SERVER = 'job="tandem",instance="a"'
OF_MODEL = f'{OF_SERVER},model_name="m"'
OF_TIER = f'{OF_MODEL},owner="decode-0",tier="disk"'
ACCEPTING = "tandem:worker_accepting{%s,worker=%s,role=%s}"
PREFILLS = ACCEPTING % (OF_MODEL, '"prefill-0"', '"prefill"')
DECODES = ACCEPTING % (OF_MODEL, '"decode-0"', '"decode"')
TTFT = "tandem:time_to_first_token_seconds"
TPOT = "tandem:request_time_per_output_token_seconds"
PREDICTED = 'tandem:slo_predictions_total{%s,bound="both",predicted="kept",outcome="%s"}'
ENDED = 'tandem:request_success_total{%s,finished_reason="%s"}'
REFUSED = 'tandem:admission_rejections_total{%s,reason="%s"}'
REQUESTS = "tandem:batch_requests{%s,state=%s}"
# Sixty requests a minute, of which a few are late, fail or are refused.
HEALTHY = {
    f"up{{{OF_SERVER}}}": "1+0x400",
    f"process_start_time_seconds{{{OF_SERVER}}}": "1000+0x400",
    f"process_open_fds{{{OF_SERVER}}}": "50+0x400",
    f"process_max_fds{{{OF_SERVER}}}": "1000+0x400",
    f"tandem:gateway_requests_waiting{{{OF_MODEL}}}": "30+0x400",
    f'tandem:num_requests_waiting{{{OF_MODEL},worker="decode-0"}}': "1+0x400",
    PREFILLS: "1+0x400",
    DECODES: "1+0x400",
    f"tandem:lost_workers_total{{{OF_MODEL}}}": "0+0.01x400",
    f'{TTFT}_bucket{{{OF_MODEL},le="2.5"}}': "0+59.7x400",
    f"{TTFT}_count{{{OF_MODEL}}}": "0+60x400",
    f'{TPOT}_bucket{{{OF_MODEL},le="0.1"}}': "0+59.7x400",
    f"{TPOT}_count{{{OF_MODEL}}}": "0+60x400",
    PREDICTED % (OF_MODEL, "kept"): "0+59.7x400",
    PREDICTED % (OF_MODEL, "missed"): "0+0.3x400",
    ENDED % (OF_MODEL, "stop"): "0+60x400",
    ENDED % (OF_MODEL, "error"): "0+0.1x400",
    REFUSED % (OF_MODEL, "queue"): "0+1x400",
    REFUSED % (OF_MODEL, "invalid"): "0+60x400",
    f'tandem:breaker_share{{{OF_MODEL},service_class="free"}}': "1+0x400",
    f'tandem:kv_cache_usage_perc{{{OF_MODEL},worker="decode-0"}}': "0.8+0x400",
    f'tandem:kv_transfers_total{{{OF_MODEL},worker="decode-0"}}': "0+60x400",
    f'tandem:kv_transfer_failures_total{{{OF_MODEL},worker="decode-0"}}': "0+1x400",
    f"tandem:kv_tier_spoilt_blocks_total{{{OF_TIER}}}": "3+0x400",
    f"tandem:kv_tier_on{{{OF_TIER}}}": "1+0x400",
    f"tandem:planned_start_failures_total{{{OF_MODEL}}}": "1+0x400",
    f"tandem:planner_stuck_workers{{{OF_MODEL}}}": "0+0x400",
    f"tandem:journal_lost_turns_total{{{OF_MODEL}}}": "7+0x400",
    f"tandem:access_log_lost_lines_total{{{OF_MODEL}}}": "7+0x400",
    f'tandem:batches{{{OF_MODEL},status="failed"}}': "2+0x400",
    REQUESTS % (OF_MODEL, '"completed"'): "99+0x400",
    REQUESTS % (OF_MODEL, '"failed"'): "1+0x400",
}
(UP,) = (name for name in HEALTHY if name.startswith("up"))


def named(begin: str) -> str:
    (name,) = (name for name in HEALTHY if name.startswith(begin))
    return name


@dataclass(frozen=True)
class Case:
    """Series that are not as when all is well (None: not there), and which alerts fire then, `at_m`
    minutes after the begin, each with labels and summary."""

    name: str
    series: dict[str, str | None] = field(default_factory=dict)
    fires: dict[str, tuple[dict[str, str], str]] = field(default_factory=dict)
    at_m: int = 2 * HOURS


M = {"job": "tandem", "model_name": "m"}
AT_A = M | {"instance": "a"}
AT_DECODE = M | {"worker": "decode-0"}
ON_DISK = M | {"owner": "decode-0", "tier": "disk"}
A = {"job": "tandem", "instance": "a"}


def late(measure: str, share: str) -> dict[str, tuple[dict[str, str], str]]:
    of = M | {"measure": measure}
    return {
        "TandemLateRequestsFast": (of, f"{share} of the requests of m are late ({measure})"),
        "TandemLateRequestsSlow": (
            of,
            f"{share} of the requests of m were late for hours ({measure})",
        ),
    }


CASES = (
    Case("all is well"),
    Case(
        "a server is down",
        {UP: "0+0x400"},
        {"TandemDown": (A, "a does not answer")},
    ),
    Case("a scrape is missed", {UP: "1+0x119 0 1+0x100"}),
    Case(
        "nothing is scraped",
        {UP: None},
        {
            "TandemNotScraped": (
                {"job": "tandem"},
                "Prometheus has no target of the job tandem",
            )
        },
    ),
    Case(
        "a server ends again and again",
        {named("process_start_time"): "1000+0x114 2000 3000 4000 5000+0x300"},
        {"TandemRestarts": (A, "a was started 4 times within half an hour")},
    ),
    Case(
        "the only prefill worker is drained",
        {PREFILLS: "0+0x400"},
        {"TandemNoPrefillWorker": (AT_A, "No worker of m takes prompts at a")},
    ),
    Case(
        "the only decode worker is gone",
        {DECODES: None},
        {"TandemNoDecodeWorker": (AT_A, "No worker of m decodes at a")},
    ),
    Case(
        "one worker takes both phases",
        {PREFILLS: None, DECODES: None, ACCEPTING % (OF_MODEL, '"w"', '"both"'): "1+0x400"},
    ),
    Case(
        "a server without workers",
        {PREFILLS: None, DECODES: None, named("tandem:gateway_requests_waiting"): None},
    ),
    Case(
        "workers die again and again, as two gateways saw",
        {
            named("tandem:lost_workers"): "0+0.2x400",
            'tandem:lost_workers_total{job="tandem",instance="b",model_name="m"}': "0+0.2x400",
        },
        {"TandemWorkersLost": (M, "m lost 6 workers within half an hour")},
    ),
    Case(
        "connections are many",
        {named("process_open_fds"): "900+0x400"},
        {"TandemOpenFilesNearLimit": (A, "a has 90% of its files open")},
    ),
    Case(
        "first tokens are late",
        {named(f"{TTFT}_bucket"): "0+45x400"},
        late("ttft", "25%"),
    ),
    Case(
        "tokens are late",
        {named(f"{TPOT}_bucket"): "0+45x400"},
        late("tpot", "25%"),
    ),
    Case(
        "some first tokens are late for hours",
        {named(f"{TTFT}_bucket"): "0+55.2x400"},
        {"TandemLateRequestsSlow": late("ttft", "8%")["TandemLateRequestsSlow"]},
        at_m=6 * HOURS,
    ),
    Case(
        "first tokens were late for two minutes",
        {named(f"{TTFT}_bucket"): "0+60x116 6960 6960 7080+60x200"},
    ),
    Case(
        "first tokens are in time again",
        {named(f"{TTFT}_bucket"): "0+45x80 3600+60x300"},
        at_m=2 * HOURS,
    ),
    Case(
        "an SLO is missed that was predicted to hold",
        {PREDICTED % (OF_MODEL, "kept"): "0+45x400", PREDICTED % (OF_MODEL, "missed"): "0+15x400"},
        late("slo", "25%")
        | {
            "TandemPredictionsOff": (
                M,
                "25% of the requests of m missed an SLO that was predicted to hold",
            )
        },
    ),
    Case("nobody asks anything", {name: "90+0x400" for name in HEALTHY if "_total{" in name}),
    Case(
        "requests fail",
        {ENDED % (OF_MODEL, "error"): "0+15x400"},
        {"TandemRequestsFail": (M, "20% of the requests of m fail")},
    ),
    Case(
        "requests are refused",
        {REFUSED % (OF_MODEL, "queue"): "0+20x400", ENDED % (OF_MODEL, "error"): "0+0x400"},
        {"TandemRequestsRefused": (M, "m refuses 25% of its requests")},
    ),
    Case(
        "a breaker is open",
        {named("tandem:breaker_share"): "0.5+0x400"},
        {
            "TandemBreakerOpen": (
                M | {"service_class": "free"},
                "Only 50% of the SLO of class free is given out",
            )
        },
    ),
    Case(
        "more and more requests wait",
        {named("tandem:gateway_requests_waiting"): "0+2x400"},
        {"TandemQueueGrows": (M, "221 requests of m wait, and they become more")},
    ),
    Case(
        "more and more requests wait at a server",
        {
            named("tandem:gateway_requests_waiting"): None,
            named("tandem:num_requests_waiting"): None,
            f"tandem:num_requests_waiting{{{OF_MODEL}}}": "0+2x400",
        },
        {"TandemQueueGrows": (M, "220 requests of m wait, and they become more")},
    ),
    Case(
        "KV is nearly full",
        {named("tandem:kv_cache_usage"): "0.99+0x400"},
        {
            "TandemKvNearlyFull": (
                AT_DECODE,
                "Running sequences hold 99% of the KV blocks of decode-0",
            )
        },
    ),
    Case(
        "KV does not arrive",
        {named("tandem:kv_transfer_failures"): "0+6x400"},
        {"TandemKvTransfersFail": (AT_DECODE, "10% of the KV transfers to decode-0 do not arrive")},
    ),
    Case(
        "blocks are corrupt",
        {named("tandem:kv_tier_spoilt"): "0+1x400"},
        {"TandemKvCorrupt": (ON_DISK, "60 KV blocks of decode-0 (disk) failed their check")},
    ),
    Case(
        "a tier is off, and now and then tried",
        {named("tandem:kv_tier_on"): "0+0x100 1 0+0x300"},
        {
            "TandemTierOff": (
                ON_DISK,
                "The tier disk of decode-0 is switched off most of the time",
            )
        },
    ),
    Case("a tier was off for a while", {named("tandem:kv_tier_on"): "1+0x100 0+0x10 1+0x300"}),
    Case(
        "workers do not start",
        {named("tandem:planned_start"): "0+0.1x400"},
        {
            "TandemPlannerCannotStart": (
                M,
                "3 workers that the planner of m wanted did not start",
            )
        },
    ),
    Case(
        "workers do not drain",
        {named("tandem:planner_stuck"): "2+0x400"},
        {"TandemPlannerStuck": (M, "2 workers of m do not do what the planner wants")},
    ),
    Case(
        "the journal loses turns",
        {named("tandem:journal_lost"): "0+1x400"},
        {"TandemJournalLosesTurns": (AT_A, "The journal of a misses 10 turns")},
    ),
    Case(
        "the access log loses lines",
        {named("tandem:access_log"): "0+2x400"},
        {"TandemAccessLogLosesLines": (AT_A, "The access log of a misses 20 lines")},
    ),
    Case(
        "batches fail",
        {named("tandem:batches"): "0+0x100 3+0x300"},
        {"TandemBatchesFail": (M, "Batches of m failed or expired within the hour")},
    ),
    Case(
        "requests of batches fail",
        {REQUESTS % (OF_MODEL, '"failed"'): "33+0x400"},
        {"TandemBatchRequestsFail": (M, "25% of the requests of running batches fail")},
    ),
)


def unit_test(case: Case) -> dict:
    """For promtool: every alert of the file fires as the case says, or not at all."""
    series = {name: values for name, values in (HEALTHY | case.series).items() if values}
    expected = []
    for name, rule in alerts().items():
        fires = []
        if name in case.fires:
            labels, summary = case.fires[name]
            description = rule["annotations"]["description"]
            annotations = {"summary": summary, "description": description}
            fires = [{"exp_labels": labels | rule["labels"], "exp_annotations": annotations}]
        expected.append({"alertname": name, "eval_time": f"{case.at_m}m", "exp_alerts": fires})
    return {
        "name": case.name,
        "interval": "1m",
        "input_series": [{"series": name, "values": each} for name, each in series.items()],
        "alert_rule_test": expected,
    }


def test_the_configuration_and_the_rules_are_correct():
    promtool("check", "config", CONFIG)
    promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)


def test_alerts_fire_when_they_should_alone(tmp_path):
    """Rules are evaluated less often than live: it takes a fifth of the time."""
    tests = [unit_test(case) for case in CASES]
    tests = {"rule_files": [str(RULES)], "evaluation_interval": "5m", "tests": tests}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(tests))
    promtool("test", "rules", tmp_path / "tests.yml")


def test_every_alert_is_seen_firing_and_says_what_to_do():
    assert {name for case in CASES for name in case.fires} == set(alerts())
    for rule in alerts().values():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert "{{" not in rule["annotations"]["description"]

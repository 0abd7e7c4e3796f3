"""Prometheus and promtool, as Debian has them. Without them tests are skipped."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from tests.deploy.manifests import DEPLOY
from tests.kv.tier_blocks import free_port
from tests.waiting import until

FOLDER = DEPLOY / "prometheus"
CONFIG, RULES = FOLDER / "prometheus.yml", FOLDER / "alerts.yml"
PATIENCE_S = 30.0


def alerts() -> dict[str, dict]:
    """The alerts of the rule file by their names."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def rules() -> list[dict]:
    """Alerts and what is recorded for them."""
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def promtool(*words: str | Path) -> str:
    """What it prints. It has nothing to complain of."""
    if shutil.which("promtool") is None:
        pytest.skip("there is no promtool")
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Prometheus:
    """One that runs, through its HTTP API."""

    def __init__(self, port: int) -> None:
        self._http = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S)

    def ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx2.TransportError:
            return False

    def values(self, expression: str) -> list[float]:
        """Of all series that the expression has now. It is one that Prometheus can evaluate."""
        found = self._get("query", query=expression)["result"]
        return [float(each["value"][1]) for each in found]

    def names(self) -> set[str]:
        """Of all series."""
        return set(self._get("label/__name__/values"))

    def label_values(self, label: str, series: str) -> list[str]:
        """As Grafana asks for them."""
        return self._get(f"label/{label}/values", **{"match[]": series})

    def targets(self) -> list[dict]:
        return self._get("targets")["activeTargets"]

    def rules(self) -> list[dict]:
        """With their health."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str, **parameters: str) -> Any:
        answer = self._http.get(f"/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", (parameters, answer)
        assert not answer.get("warnings"), (parameters, answer)
        return answer["data"]


@contextmanager
def scraping(targets: Mapping[str, int], folder: Path) -> Iterator[Prometheus]:
    """With the configuration and the rules of deploy/, but these ports instead of its target, and
    in haste. Each target has been scraped some times."""
    if shutil.which("prometheus") is None:
        pytest.skip("there is no prometheus")
    config = yaml.safe_load(CONFIG.read_text())
    config["global"] = dict.fromkeys(config["global"], "250ms")
    config["rule_files"] = [str(FOLDER / name) for name in config["rule_files"]]
    (job,) = config["scrape_configs"]
    job["static_configs"] = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}}
        for name, port in targets.items()
    ]
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    process = subprocess.Popen(command)
    prometheus = Prometheus(port)
    try:
        until(prometheus.ready, PATIENCE_S)
        seen = 'count(sum_over_time(up{job="tandem"}[1m]) >= 4) or vector(0)'
        until(lambda: prometheus.values(seen) == [len(targets)], PATIENCE_S)
        yield prometheus
    finally:
        process.kill()
        process.wait(PATIENCE_S)

"""Makes the object of the Prometheus operator out of alerts.yml.

python deploy/prometheus/prometheus_rule.py > deploy/kubernetes/monitoring/alerts.yaml
python deploy/prometheus/prometheus_rule.py --prefix vllm      # for `--metrics-prefix vllm`
"""

import argparse
from pathlib import Path
from typing import Any

import yaml

ALERTS = Path(__file__).with_name("alerts.yml")
HEAD = "# Made of deploy/prometheus/alerts.yml by prometheus_rule.py, beside it.\n"
LINE_CHARACTERS = 100


def prometheus_rule(groups: dict[str, Any]) -> dict[str, Any]:
    """`groups` are what a rule file of Prometheus holds."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "tandem", "labels": {"app.kubernetes.io/part-of": "tandem"}},
        "spec": groups,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the alerts as a PrometheusRule.")
    parser.add_argument("--prefix", default="tandem", help="of the names of metrics")
    text = ALERTS.read_text().replace("tandem:", f"{parser.parse_args().prefix}:")
    made = prometheus_rule(yaml.safe_load(text))
    print(HEAD + yaml.safe_dump(made, sort_keys=False, width=LINE_CHARACTERS), end="")


if __name__ == "__main__":
    main()

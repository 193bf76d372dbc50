"""What is shipped for Prometheus and Grafana. Goal: it is right, and about metrics that exist.

Prometheus' own promtool judges rules and expressions; `scripts/test` gets it where it is missing.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from inferd.metrics import Metrics
from tests.fakes.engines import REPOSITORY

RULES = REPOSITORY / "deploy" / "prometheus" / "inferd.rules.yml"
DASHBOARD = REPOSITORY / "deploy" / "grafana" / "inferd.json"
UNPACKED = REPOSITORY / ".inferd" / "promtool" / "usr" / "bin" / "promtool"
FETCHED = "no promtool: apt or its package lists are missing here (scripts/test tries to get it)"
# What Grafana puts into an expression, and what may stand there.
VARIABLES = {"$__rate_interval": "5m", "$instance": ".*", "$model": ".*", "$team": ".*"}
ALWAYS = {"instance", "job", "le"}
SELECTOR = re.compile(r"\b(inferd_\w+)(?:\{([^}]*)\})?")
LABEL = re.compile(r"(\w+)\s*(?:=~|!=|!~|=)")
GROUPED = re.compile(r"\bby \(([^)]*)\)")


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool") or (str(UNPACKED) if UNPACKED.exists() else None)
    if program is None:
        pytest.skip(FETCHED)
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def declared() -> dict[str, set[str]]:
    """Every sample that `/metrics` may have, with its labels."""
    registry = CollectorRegistry()
    Metrics(registry)
    samples: dict[str, set[str]] = {"inferd_build_info": {"version", "python"}}
    for family in registry.collect():  # the process' own have no declaration
        samples |= {sample.name: set(sample.labels) for sample in family.samples}
    for collector, names in registry._collector_to_names.items():
        labels = set(getattr(collector, "_labelnames", ()))
        if isinstance(collector, MetricWrapperBase) or names:
            for name in names:
                samples.setdefault(name, labels)
    return samples


def wrong_names(expression: str, samples: dict[str, set[str]]) -> Iterator[str]:
    """Metrics and labels in an expression that do not exist."""
    used: set[str] = set()
    for name, selector in SELECTOR.findall(expression):
        if name not in samples:
            yield name
            continue
        used |= samples[name]
        for label in LABEL.findall(selector):
            if label not in samples[name] | ALWAYS:
                yield f"{name}{{{label}}}"
    for group in GROUPED.findall(expression):
        for label in group.split(","):
            if label.strip() not in used | ALWAYS:
                yield f"by ({label.strip()})"


def expressions() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return [str(target["expr"]) for target in targets]


def test_the_rules_are_right() -> None:
    done = promtool("check", "rules", "--lint-fatal", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "19 rules found" in done.stdout


def test_the_alerts_say_what_they_should(tmp_path: Path) -> None:
    """Burn rates over both windows, a node without workers, a budget."""
    text = Path(__file__).with_name("inferd_rules_test.yml").read_text()
    cases = tmp_path / "cases.yml"
    cases.write_text(text.replace("RULES", str(RULES)))
    done = promtool("test", "rules", str(cases))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_about_what_exists() -> None:
    text = re.sub(r'(summary|description): ".*"', "", RULES.read_text())
    parts = re.findall(r"expr: (?:>-\n((?: {10}.*\n)+)|(.*)\n)", text)
    samples = declared()
    wrong = [one for folded, plain in parts for one in wrong_names(folded or plain, samples)]
    assert len(parts) == 19
    assert wrong == []


def test_the_dashboard_is_about_what_exists() -> None:
    samples = declared()
    found = expressions()
    assert len(found) > 25
    assert [one for text in found for one in wrong_names(text, samples)] == []


def test_what_does_not_exist_is_found() -> None:
    samples = {"inferd_a_total": {"team"}}
    assert list(wrong_names('rate(inferd_b_total{team="x"}[5m])', samples)) == ["inferd_b_total"]
    assert list(wrong_names('inferd_a_total{pool="x"}', samples)) == ["inferd_a_total{pool}"]
    assert list(wrong_names("sum by (pool) (inferd_a_total)", samples)) == ["by (pool)"]


def test_the_dashboards_expressions_can_be_asked(tmp_path: Path) -> None:
    rules = []
    for number, expression in enumerate(expressions()):
        asked = re.sub(r"\$\w+", lambda found: VARIABLES[found[0]], expression)
        rules.append({"record": f"dashboard:{number}", "expr": asked})
    # JSON is YAML.
    path = tmp_path / "dashboard.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = promtool("check", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_can_be_imported() -> None:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    assert dashboard["title"] == dashboard["uid"] == "inferd"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    names = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = {name for text in expressions() for name in re.findall(r"\$(\w+)", text)}
    assert used - {"__rate_interval"} <= names
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]

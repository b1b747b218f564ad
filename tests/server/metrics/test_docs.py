"""`docs/metrics.md` and the dashboard name what `/metrics` exposes; a failure prints the table as it should be."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from lullm.config.option.sleep_after import SleepRung
from lullm.server.metrics.registry import Metrics

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "metrics.md"
HEAD = "|---|---|---|---|\n"


def exposed(engine) -> dict[str, tuple[str, str, set[str]]]:
    """Metric -> its kind, its help, the labels of its samples."""
    metrics = Metrics(engine)
    for cause in ("call", "idle"):
        metrics._sleeps[cause].inc()
    metrics._sleep_seconds.labels("m", "1")
    families = {}
    for registry in (metrics.registry, metrics.vllm.registry):
        for family in registry.collect():
            labels = {label for sample in family.samples for label in sample.labels}
            families[family.name] = family.type, family.documentation, labels - {"model_name", "engine", "le"}
    assert len(list(text_string_to_metric_families(metrics.exposition().decode()))) >= len(families)
    return families


def table(engine) -> str:
    rows = sorted(exposed(engine).items())
    return HEAD + "".join(
        f"| `{name}` | {kind} | {', '.join(sorted(labels))} | {text} |\n" for name, (kind, text, labels) in rows
    )


def with_rung(engine):
    """All labels show: the engine has a ladder."""
    engine.next_sleep = SleepRung(60.0, 1, "auto"), 5.0
    return engine


def test_the_table_is_up_to_date(scripted):
    before, _, after = PAGE.read_text().partition(HEAD)
    found = table(with_rung(scripted()))
    assert after.startswith(found.removeprefix(HEAD)), f"write this table into docs/metrics.md:\n{found}"
    assert not after[len(found) - len(HEAD) :].startswith("|")


def test_the_dashboard_names_metrics_that_exist(scripted):
    kinds = {name: kind for name, (kind, _, _) in exposed(with_rung(scripted())).items()}
    suffixes = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    samples = {name + suffix for name, kind in kinds.items() for suffix in suffixes[kind]}
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    named = set(re.findall(r"\b(?:lullm_|vllm:)\w+", " ".join(expressions)))
    assert len(expressions) > 12 and named <= samples, named - samples
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids) and not dashboard.get("id")
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            assert panel["targets"] and panel["datasource"] == {"type": "prometheus", "uid": "${source}"}

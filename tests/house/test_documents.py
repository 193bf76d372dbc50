"""What an operator or a client can meet is documented: metrics, error codes, configuration keys."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel

from inferd.config.schema import Config
from inferd.metrics import Metrics
from tests.house import repository

# The metric types whose exposed name has a suffix that the family's name lacks.
SUFFIXES = {"counter": "_total", "info": "_info"}

ROW = re.compile(
    r"^\| `(?P<name>inferd_\w+)` \| (?P<type>\w+) \| (?P<labels>[^|]*)\|", re.MULTILINE
)


def documented_metrics(text: str) -> set[tuple[str, str, str]]:
    """Name, type, labels of each table row."""
    return {(m["name"], m["type"], m["labels"].strip()) for m in ROW.finditer(text)}


def declared_metrics(registry: CollectorRegistry) -> set[tuple[str, str, str]]:
    labels = {
        collector._name: ", ".join(collector._labelnames)
        for collector in registry._collector_to_names
        if isinstance(collector, MetricWrapperBase)
    }
    labels["inferd_build"] = "version, python"
    return {
        (family.name + SUFFIXES.get(family.type, ""), family.type, labels.get(family.name, ""))
        for family in registry.collect()
    }


def test_metrics_are_documented() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    assert documented_metrics(repository.read("docs/metrics.md")) == declared_metrics(registry)


def test_a_missing_metric_is_found() -> None:
    registry = CollectorRegistry()
    Counter("inferd_new", "New.", ["team"], registry=registry)
    Gauge("inferd_old", "Old.", registry=registry)
    assert declared_metrics(registry) == {
        ("inferd_new_total", "counter", "team"),
        ("inferd_old", "gauge", ""),
    }
    assert documented_metrics("| `inferd_old` | gauge | | Old. |\n") == {
        ("inferd_old", "gauge", "")
    }


def codes_in_source(source: str) -> Iterator[str]:
    """Every string given as `code=` or as a class's `default_code`."""
    for node in ast.walk(ast.parse(source)):
        value = None
        if isinstance(node, ast.keyword) and node.arg == "code":
            value = node.value
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id == "default_code" for t in targets):
                value = node.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


def error_codes() -> set[str]:
    return {
        code
        for path in repository.python_files()
        if path.startswith("inferd/") and not path.startswith("inferd/cli/")
        for code in codes_in_source(repository.read(path))
    }


def in_code_marks(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))


def test_error_codes_are_documented() -> None:
    missing = error_codes() - in_code_marks(repository.read("docs/errors.md"))
    assert not missing, f"docs/errors.md lacks {sorted(missing)}"


def test_codes_are_found_in_source() -> None:
    source = (
        "raise InvalidField('m', code='from_call')\n"
        "class A:\n    default_code = 'from_class'\n"
        "class B:\n    default_code: ClassVar[str | None] = 'annotated'\n"
        "class C:\n    default_code = None\n"
        "print('`not_a_code`', param='not_a_code')\n"
    )
    assert set(codes_in_source(source)) == {"from_call", "from_class", "annotated"}


def configuration_keys(section: type[BaseModel], path: str = "") -> Iterator[str]:
    """Every key as a dotted path, tables included."""
    for name, field in section.model_fields.items():
        yield f"{path}{name}"
        for below in _sections(field.annotation):
            yield from configuration_keys(below, f"{path}{name}.")


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)


def test_configuration_keys_are_documented() -> None:
    """Each key stands in code marks, alone or at the end of its path."""
    text = {mark.rpartition(".")[2] for mark in in_code_marks(repository.read("docs/config.md"))}
    missing = [key for key in configuration_keys(Config) if key.rpartition(".")[2] not in text]
    assert not missing, f"docs/config.md lacks {missing}"


def test_configuration_keys_are_found_at_every_depth() -> None:
    keys = set(configuration_keys(Config))
    assert {"server.listen", "models.versions.engine.device", "teams.weight"} <= keys

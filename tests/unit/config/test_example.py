"""The example file and the documentation. Goal: neither says anything that is not so."""

from __future__ import annotations

import re
from pathlib import Path

from inferd.config.load import parse_config
from inferd.config.schema import Config, section_in
from inferd.config.section import Section

ROOT = Path(__file__).parents[3]
EXAMPLE = (ROOT / "inferd.example.toml").read_text()


def sections(section: type[Section] = Config) -> dict[str, type[Section]]:
    found = {section.__name__: section}
    for field in section.model_fields.values():
        if below := section_in(field.annotation):
            found |= sections(below)
    return found


def test_the_example_is_right() -> None:
    config = parse_config(ROOT / "inferd.example.toml", EXAMPLE, {}).config
    assert [model.name for model in config.models] == ["chat-small", "chat-large"]
    assert config.models[0].versions[0].workers.count == 4
    assert config.models[1].versions[0].workers.count == 0


def test_the_example_is_right_with_every_comment_taken_away() -> None:
    every = re.sub(r"^# (\w+ = )", r"\1", EXAMPLE, flags=re.MULTILINE)
    every = every.replace("sha256:...", "sha256:" + "0" * 64)
    names = ("LARGE_WORKER_KEY", "STORE_KEY_ID", "STORE_SECRET_KEY", "STORE_TOKEN")
    environ = dict.fromkeys(names, "x")
    config = parse_config(ROOT / "inferd.example.toml", every, environ).config
    assert config.models[0].versions[0].engine.kv_tokens_max == 400_000
    assert config.models[1].versions[0].attached[0].model == "large-70b"


def test_the_example_has_every_key() -> None:
    written = set(re.findall(r"^(?:# )?(\w+) =", EXAMPLE, re.MULTILINE))
    plain = {
        key
        for section in sections().values()
        for key, field in section.model_fields.items()
        if section_in(field.annotation) is None
    }
    assert plain - written == set()


def test_the_example_says_what_a_change_of_each_section_needs() -> None:
    headers = dict(re.findall(r"^\[+([a-z.]+)\]+ +# (\w+)", EXAMPLE, re.MULTILINE))
    marks = {name: section.model_config.get("json_schema_extra") for name, section in NAMED.items()}
    assert {name: {"reload": mark} for name, mark in headers.items()} == marks


NAMED = {
    "server": sections()["Server"],
    "engine": sections()["Engine"],
    "files": sections()["Files"],
    "logs": sections()["Logs"],
    "tracing": sections()["Tracing"],
    "billing": sections()["Billing"],
    "batches": sections()["Batches"],
    "models": sections()["Model"],
    "models.defaults": sections()["SamplingDefaults"],
    "models.targets": sections()["Targets"],
    "models.queue": sections()["Queue"],
    "models.versions": sections()["Version"],
    "models.versions.engine": sections()["EngineOptions"],
    "models.versions.workers": sections()["Workers"],
    "models.versions.watchdog": sections()["Watchdog"],
    "models.versions.attached": sections()["AttachedWorker"],
    "models.versions.prices": sections()["Prices"],
    "models.versions.engine.lora": sections()["Lora"],
    "models.versions.adapters": sections()["Adapter"],
    "models.versions.takes": sections()["Takes"],
    "models.versions.split": sections()["Split"],
    "teams": sections()["Team"],
    "teams.limits": sections()["LimitsOnModel"],
    "teams.budget": sections()["Budget"],
    "teams.recording": sections()["Recording"],
}

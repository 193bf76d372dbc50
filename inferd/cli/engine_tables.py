"""The doctor's findings as tables for people. Scripts use `--json`."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from inferd.cli.tables import PIPE_COLUMNS
from inferd.provision.doctor import Diagnosis, Level
from inferd.provision.features import Works

_MARKS = {
    Level.OK: "[green]ok[/green]",
    Level.NOTE: "[yellow]note[/yellow]",
    Level.PROBLEM: "[red]problem[/red]",
}
_COLOURS = {Works.YES: "green", Works.NO: "red", Works.ON_REQUEST: "yellow"}


def show_diagnosis(diagnosis: Diagnosis) -> None:
    """Findings, then features, then the verdict."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_COLUMNS)
    findings = _table("", "", "found")
    for finding in diagnosis.findings:
        text = escape(finding.text)
        if finding.next_step:
            text += f"\n[bold]next:[/bold] {escape(finding.next_step)}"
        findings.add_row(_MARKS[finding.level], finding.subject, text)
    console.print(findings)
    console.print()
    device = "the engine" if diagnosis.device else "an engine, once installed,"
    features = _table(f"what {device} can do here", "works", "")
    for feature in diagnosis.features:
        colour = _COLOURS.get(feature.works, "yellow")
        features.add_row(
            feature.name, f"[{colour}]{feature.works}[/{colour}]", escape(feature.remark)
        )
    console.print(features)
    console.print()
    verdict = "[green]Engines can serve from here.[/green]"
    if not diagnosis.can_serve:
        verdict = "[red]There are problems: each says what to do next.[/red]"
    console.print(verdict)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table

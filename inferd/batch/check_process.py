"""The process that checks a batch's file: rules in, a report and an index of its lines out.

One huge line would hold the interpreter of whoever parses it, so that is not the gateway's.
Standard input: JSON of `rules`, `path` and `index`. Standard output: JSON of the report.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import orjson

from inferd.batch.lines import Rules, check_file

NICENESS: Final = 10


def main() -> None:
    """Check, write the index beside the file, report."""
    os.nice(NICENESS)
    asked = orjson.loads(sys.stdin.buffer.read())
    checked = check_file(Path(asked["path"]), Rules(**asked["rules"]))
    if not checked.errors:
        with Path(asked["index"]).open("wb") as file:
            checked.entries.tofile(file)
            file.flush()
            os.fsync(file.fileno())
    report = {
        "total": checked.total,
        "model": checked.model,
        "prompt_tokens": checked.prompt_tokens,
        "output_tokens": checked.output_tokens,
        "unlimited": checked.unlimited,
        "errors": [error.as_json() for error in checked.errors],
        "errors_total": checked.errors_total,
    }
    sys.stdout.buffer.write(orjson.dumps(report))


if __name__ == "__main__":
    main()

"""How far one inferd goes on this machine, which carries clients and workers as well.

`scripts/bench scale [PART...] [--json]`. `streams`: 4,500 at once at their highest pace, and the
most at 25 tokens/s. `mix`: requests a second of the mix that a fleet's peak is made of. `bodies`:
requests of 400 KB beside small ones. `slow`: readers that hardly read beside those that do.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from scripts.benchmarks.relay import native
from scripts.benchmarks.scale import bodies, mix, slow, streams
from scripts.benchmarks.scale.gateway import TooFewDescriptorsError, allow_descriptors

PARTS: Final[dict[str, Callable[[Path], tuple[dict[str, Any], list[str], list[str]]]]] = {
    "streams": streams.measure,
    "mix": mix.measure,
    "bodies": bodies.measure,
    "slow": slow.measure,
}


def main() -> int:
    options = argparse.ArgumentParser(prog="scripts/bench scale", description=__doc__)
    options.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    options.add_argument("--json", action="store_true", help="figures for a program")
    chosen = options.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        options.error(f"no part is called {', '.join(sorted(unknown))}")
    try:
        allow_descriptors()
    except TooFewDescriptorsError as error:
        sys.exit(str(error))
    wrong: list[str] = []
    for name in chosen.parts or PARTS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            native.build(folder)
            told, said, over = PARTS[name](folder)
        if chosen.json:
            print(json.dumps({"benchmark": "scale", "part": name, **told}), flush=True)
        else:
            print("\n".join(said) + "\n", flush=True)
        wrong += [f"{name}: {line}" for line in over]
    sys.stderr.write("".join(f"{line}\n" for line in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs one fake engine: `python -m tests.fake_engine --port N [SGLang's flags]`.

Also runs by its path, from any folder: `python tests/fake_engine/__main__.py …`.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    if not __package__:
        sys.path[0] = str(Path(__file__).resolve().parents[2])
    from tests.fake_engine.life import main

    sys.exit(main(sys.argv[1:]))

"""Runs one fake engine: `python -m tests.fake_engine --port N [SGLang's flags]`."""

from __future__ import annotations

import sys

from tests.fake_engine.life import main

sys.exit(main(sys.argv[1:]))

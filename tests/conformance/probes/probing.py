"""Runs checks by name and says `ok NAME` or `not ok NAME: why`."""

from __future__ import annotations

import os
import sys

BASE_URL, API_KEY = os.environ["BASE_URL"], os.environ["API_KEY"]
MODEL, EMBEDDING_MODEL = os.environ["MODEL"], os.environ["EMBEDDING_MODEL"]
FAILED = []


def check(function):
    """Run it now."""
    try:
        function()
    except Exception as error:
        FAILED.append(function.__name__)
        print(f"not ok {function.__name__}: {type(error).__name__}: {str(error)[:500]}")
    else:
        print(f"ok {function.__name__}")


def done():
    sys.exit(bool(FAILED))

"""`python -m inferd`: the same as the `inferd` command."""

from __future__ import annotations

from inferd.cli.main import main

if __name__ == "__main__":
    main()

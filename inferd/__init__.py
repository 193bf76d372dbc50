"""inferd serves open-weight models on a company's own GPUs to its own teams."""

from __future__ import annotations

__version__ = "0.1.0"

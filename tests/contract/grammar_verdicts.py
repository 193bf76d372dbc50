"""Run by the engine's Python: what its grammar compiler makes of schemas, one JSON line each.

Reads `[[schema, [value...]], ...]` from standard input; writes for each schema the values that its
grammar takes, or null where there is no grammar.
"""

from __future__ import annotations

import json
import sys

import xgrammar
from xgrammar.testing import _is_grammar_accept_string


def verdict(schema: object, values: list[object]) -> list[bool] | None:
    try:
        grammar = xgrammar.Grammar.from_json_schema(json.dumps(schema), any_whitespace=False)
    except RuntimeError:
        return None
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    return [_is_grammar_accept_string(grammar, text) for text in texts]


if __name__ == "__main__":
    verdicts = [verdict(schema, values) for schema, values in json.load(sys.stdin)]
    sys.stdout.write("\n" + json.dumps(verdicts) + "\n")

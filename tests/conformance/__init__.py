"""Client suites of others, run against a whole inferd: see scripts/conformance."""

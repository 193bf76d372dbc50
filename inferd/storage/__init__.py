"""The SQLite file: one writer, numbered migrations, one module per kind of row."""

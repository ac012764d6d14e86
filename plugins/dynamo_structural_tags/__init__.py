"""Tool calls that cannot come out wrong: what the grammar allows, the parser reads back, and the schema accepts."""

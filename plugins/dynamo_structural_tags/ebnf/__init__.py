"""Grammars in xgrammar's EBNF, written from shapes of `schema`: JSON values, raw text, and keys in any order.

A structural tag can hold one such grammar for all tools of a request. Rules are shared: a JSON string is compiled
once, not once per parameter, and nothing depends on how xgrammar reads JSON Schema.
"""

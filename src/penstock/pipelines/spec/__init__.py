"""A pipeline as people write it → `penstock.pipelines.model.Spec`; all mistakes at once, each with its line.

Owns the file's grammar. Never imports pyspark (but to load a function), reads no topic and starts nothing.

document.py    YAML → tree, variables filled in    definition.py   the same pipeline as a Python program → tree
tree.py        tables, lists, texts, with lines    values.py       durations, sizes, ...: a value as its key wants it
tables.py      the keys, and what they mean        parse.py        tree → Spec
sources.py  steps.py  expectations.py              the parts of it
queries.py     which tables a query reads          functions.py    steps in Python: found, then loaded
fingerprint.py whether two pipelines mean the same sample.py       a pipeline to begin with
"""

from penstock.pipelines.spec.parse import load, parse

__all__ = ["load", "parse"]

"""Formulas over attributes and over content: one small language for policies and interests.

A declared `AttributeSpace` and a text come in; a `Formula` in canonical form goes out, and with it evaluation over
plain attribute sets and over columns, the tree of traits that CP-ABE shares a secret over, and the indexes that match
formulas with principals, events and advertisements. Nothing here is secret, and nothing here knows a key.
"""

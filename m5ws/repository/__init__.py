"""A store, typed and content-addressed (docs/format.md).

Invariant: leaves are written before what names them, and a reference is written last. So everything that can be
reached is whole, whatever was killed when.
"""

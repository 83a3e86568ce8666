"""Large objects: bytes of any kind, cut, sealed and served as two plain files by anybody, verified as they come.

A firmware image, a model, a clip, or a record that does not fit a parcel comes in; a reference comes out, which names
the object by its root and carries the key. Servers hold neither key nor plain bytes.
"""

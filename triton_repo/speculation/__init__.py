"""The speculation loop behind the public model.

This folder is copied verbatim into the repositories it serves from, so its modules import each
other relatively and nothing else of trtspec.
"""

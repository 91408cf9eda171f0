"""Whether a pair should speculate, and how far: predicted before anything is built, and from a server after.

`prediction` puts together what `measurement` finds of two checkpoints (how often they agree, what
their passes take); `fitting` does the same from a few measured points of a server, which `experiment`
chooses. The formulas are those of trtspec.theory.
"""

"""The one error tree. A message says: where, what was found, what was expected, what to do.

TrtspecError
├── CheckpointError    a Hugging Face folder that cannot be used as it is
├── PairError          a target and a draft that do not fit each other
├── RecipeError        a recipe.toml that does not say what it should, or a name that is none
├── BuildError         a conversion or compilation that could not be done
├── EngineError        an engine pair on disk that is missing, broken or made for another host
├── PlanError          two models that cannot be placed on GPUs as asked
├── OutputError        a folder or a file that cannot be written as asked
├── RepositoryError    a Triton model repository that cannot be written or served
├── ServerError        a Triton server that did not start, died, or did not stop
└── ClientError        see trtspec.client: what a caller of a running server can meet
"""

from __future__ import annotations


class TrtspecError(Exception):
    """Base of everything trtspec raises on purpose; the command prints it as one line."""


class CheckpointError(TrtspecError):
    """A Hugging Face folder that cannot be used as it is."""


class PairError(TrtspecError):
    """A target and a draft that do not fit each other."""


class RecipeError(TrtspecError):
    """A recipe.toml that does not say what it should, or a name that is none."""


class BuildError(TrtspecError):
    """A conversion or compilation that could not be done."""


class EngineError(TrtspecError):
    """An engine pair on disk that is missing, broken or made for another host."""


class PlanError(TrtspecError):
    """Two models that cannot be placed on GPUs as asked."""


class OutputError(TrtspecError):
    """A folder or a file that cannot be written as asked."""


class RepositoryError(TrtspecError):
    """A Triton model repository that cannot be written or served."""


class ServerError(TrtspecError):
    """A Triton server that did not start, died, or did not stop."""


class ClientError(TrtspecError):
    """Base of what a caller of a running server can meet."""

"""What is wrong with a model repository, told without a server."""

from trtspec.triton_repo.lint.finding import Finding as Finding
from trtspec.triton_repo.lint.finding import Rule as Rule
from trtspec.triton_repo.lint.rules import RULES as RULES
from trtspec.triton_repo.lint.rules import lint as lint

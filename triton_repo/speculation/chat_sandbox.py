"""Where a checkpoint's chat template runs: Jinja as transformers sets it up, with bounds.

Imported only where there is a template, for it needs jinja2.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

# Longest text or list that `*` may make, and largest number that `**` may: neither has use for more.
LONGEST_PRODUCT = 1 << 20
LARGEST_POWER = 1 << 64


class TemplateRefusal(Exception):
    """What a template says by `raise_exception`."""


class Sandbox(ImmutableSandboxedEnvironment):
    """No Python behind attributes, nothing changed that was passed in, no text out of thin air."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
        )
        # Jinja's own filter escapes what HTML would need.
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = _strftime_now
        self.globals["dict"] = _dict
        self.globals["namespace"] = PlainNamespace

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            return _power(left, right)
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and len(sequence) * count > LONGEST_PRODUCT:
                raise SecurityError(f"a product of more than {LONGEST_PRODUCT} elements")
        return left * right


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is a block like any other."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class PlainNamespace(Namespace):
    """Jinja's namespace, without the names that reach into Python."""

    # As in Jinja's own: a namespace may have an attribute `self`.
    def __init__(*args: Any, **kwargs: Any) -> None:
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _require_public(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_public(name)
        super().__setitem__(name, value)


def _require_public(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace has no attribute {name!r}")


def _power(base: Any, exponent: Any) -> Any:
    bits = exponent * base.bit_length() if isinstance(base, int) and isinstance(exponent, int) else 0
    if bits > LARGEST_POWER.bit_length():
        raise SecurityError(f"a power beyond {LARGEST_POWER}")
    return base**exponent


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)

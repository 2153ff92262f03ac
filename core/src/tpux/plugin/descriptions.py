"""What the keys of a section mean: the docstrings of its model's fields, read from the source when they are needed.

pydantic would read them whenever the module is imported (`use_attribute_docstrings`), which costs each command 15 ms.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

from pydantic import BaseModel


@cache
def descriptions(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the description of each field that has one: that of pydantic's `Field`, else its docstring."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if issubclass(cls, BaseModel):
            found |= _docstrings(cls)
    fields: Mapping[str, object] = model.model_fields
    given = {name: field.description for name, field in model.model_fields.items() if field.description}
    return {name: text for name, text in {**found, **given}.items() if name in fields}


def _docstrings(cls: type) -> dict[str, str]:
    """Return the docstrings of the fields that a class itself has; none if its source cannot be read."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError):
        return {}
    found = {}
    for field, docstring in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
        match field, docstring:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                found[name] = inspect.cleandoc(text)
    return found

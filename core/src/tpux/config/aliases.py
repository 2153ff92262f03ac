"""The keys of a model's fields."""

from __future__ import annotations

from pydantic import AliasChoices
from pydantic.fields import FieldInfo


def names_of(field_name: str, field: FieldInfo) -> list[str]:
    """The keys that set a field: its name and its aliases."""
    alias = field.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return [field_name, *(choice for choice in choices if isinstance(choice, str) and choice != field_name)]

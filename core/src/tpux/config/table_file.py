"""A YAML file beside the config, such as a table of prices or of signatures, with the messages of a config."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from tpux.config import yaml
from tpux.config.document import Span, to_json
from tpux.config.error_messages import SectionErrors
from tpux.errors import ConfigError, Problem

ModelT = TypeVar("ModelT", bound=BaseModel)


def read_data_file(path: Path, model: type[ModelT]) -> ModelT:
    """Read a YAML file as a model.

    Args:
        path: the file.
        model: what it contains; a file that contains nothing has the model's defaults.

    Raises:
        ConfigError: it cannot be read or is invalid; has all errors, each with `file:line:column`.
    """
    source = yaml.read(path)
    problems: list[Problem] = []
    root = yaml.parse(source, problems)
    if problems:
        raise ConfigError(problems)
    try:
        return model.model_validate({} if root is None else to_json(root, lambda placeholder: placeholder.name))
    except ValidationError as error:
        errors = SectionErrors("", model, root, Span(source))
        raise ConfigError(errors.problems(error.errors(include_url=False))) from error

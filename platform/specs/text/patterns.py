"""Texts that must have a certain form, and the words for it in messages."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

JOB_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
LABEL_PATTERN = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
IMPORT_PATH_PATTERN = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
REGISTERED_MODEL_PATTERN = r"^[^/:.][^/:]*$"
CURRENCY_PATTERN = r"^[A-Z]{3}$"

PATTERN_WORDS = {
    JOB_NAME_PATTERN: "lower-case letters (a to z), digits and hyphens, with a letter or a digit at both ends",
    LABEL_PATTERN: "letters (A to Z, a to z), digits, '-', '_' and '.', with a letter or a digit at both ends",
    IMPORT_PATH_PATTERN: "an import path such as my_package.models:MyModel",
    REGISTERED_MODEL_PATTERN: "text without '/' and ':' that does not begin with '.'",
    CURRENCY_PATTERN: "an ISO 4217 code such as EUR",
}
"""What a text that matches the pattern is."""

# 40 characters leave room for the date and the role that are appended to make a pod's name (63 in Kubernetes).
JobName = Annotated[str, Field(pattern=JOB_NAME_PATTERN, max_length=40, examples=["click-dlrm"])]
Label = Annotated[str, Field(pattern=LABEL_PATTERN, max_length=63)]
ImportPath = Annotated[str, Field(pattern=IMPORT_PATH_PATTERN, examples=["my_package.models:MyModel"])]


def not_blank(text: str) -> str:
    """Returns the text unchanged; raises ValueError if it is empty or consists of white space."""
    if not text.strip():
        raise ValueError("text that is not blank")
    return text


Location = Annotated[str, Field(min_length=1), AfterValidator(not_blank)]
"""A path or a URI."""

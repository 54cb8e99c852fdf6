"""A network's dense parameters as one float32 vector, without copies: the parameters are views of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.trainers.parameter_server.messages import Parameter

Array = np.ndarray[Any, Any]


class FlatParameters:
    """Lays a module's trainable parameters and their gradients out in two flat vectors.

    Use `zero_gradients`, not `zero_grad`: the parameters' `.grad` must stay views.

    Attributes:
        layout: name and shape of each parameter in the vector's order (that of `named_parameters`).
        values: [P] float32, writing to it changes the parameters.
        gradients: [P] float32, where backward adds the gradients.

    Raises:
        SpecError: a parameter is not float32.
    """

    def __init__(self, module: nn.Module) -> None:
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        problems = [
            FieldProblem(name, str(parameter.dtype), "torch.float32", "remove .half() / .to(...) from the model")
            for name, parameter in named
            if parameter.dtype != torch.float32
        ]
        if problems:
            raise SpecError(problems, "the model's parameters")
        self.layout = [Parameter(name, tuple(parameter.shape)) for name, parameter in named]
        total = sum(math.prod(parameter.shape) for parameter in self.layout)
        values, gradients = torch.empty(total), torch.zeros(total)
        at = 0
        with torch.no_grad():
            for _, parameter in named:
                end = at + parameter.numel()
                values[at:end] = parameter.reshape(-1)
                parameter.data = values[at:end].view(parameter.shape)
                parameter.grad = gradients[at:end].view(parameter.shape)
                at = end
        self._gradients = gradients
        self.values: Array = values.numpy()
        self.gradients: Array = gradients.numpy()

    def load(self, values: Array) -> None:
        """Takes pulled values [P] float32."""
        np.copyto(self.values, values)

    def zero_gradients(self) -> None:
        self._gradients.zero_()

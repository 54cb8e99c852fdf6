"""A network's dense parameters as one float32 vector: the parameters are views of it, gradients are parts of it."""

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
    """Lays a module's trainable parameters out in one flat vector.

    Gradients are not views of such a vector: autograd hands its own buffers over to parameters without a gradient,
    while adding into a zeroed vector would write it twice and read it twice in each step.

    Attributes:
        layout: name and shape of each parameter in the vector's order (that of `named_parameters`).
        values: [P] float32, writing to it changes the parameters.

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
        values = torch.empty(total)
        at = 0
        with torch.no_grad():
            for _, parameter in named:
                end = at + parameter.numel()
                values[at:end] = parameter.reshape(-1)
                parameter.data = values[at:end].view(parameter.shape)
                parameter.grad = None
                at = end
        self._parameters = [parameter for _, parameter in named]
        self.values: Array = values.numpy()

    @property
    def gradients(self) -> list[Array]:
        """The gradients after backward, a part of the vector for each parameter, float32; zero if the loss does not
        depend on it.

        The parts are autograd's own memory: nothing changes them after `zero_gradients`.
        """
        # Flattened by numpy, for which a view costs a fraction of torch's.
        return [
            np.zeros(parameter.numel(), np.float32) if gradient is None else gradient.numpy().reshape(-1)
            for parameter in self._parameters
            for gradient in [parameter.grad]
        ]

    def zero_gradients(self) -> None:
        """Call it before backward."""
        for parameter in self._parameters:
            parameter.grad = None

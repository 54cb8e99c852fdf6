"""Models by name: the built-in ones and a user's `package.module:Class`, checked before anything runs."""

from __future__ import annotations

import importlib
import inspect
import traceback

import torch
from torch import nn

from elastrec.platform.specs.errors import MISSING, FieldProblem, SpecError
from elastrec.platform.specs.job import BUILT_IN_MODELS, ModelSpec
from elastrec.trainers.deduplication import AttentionBags
from elastrec.trainers.models.schema import FeatureSchema

_BUILT_IN = {
    "wide_and_deep": "elastrec.trainers.models.wide_and_deep:WideAndDeep",
    "deepfm": "elastrec.trainers.models.deepfm:DeepFM",
    "xdeepfm": "elastrec.trainers.models.xdeepfm:XDeepFM",
    "dcn_v2": "elastrec.trainers.models.dcn_v2:DcnV2",
    "dlrm": "elastrec.trainers.models.dlrm:Dlrm",
    "din": "elastrec.trainers.models.din:Din",
    "bst": "elastrec.trainers.models.bst:Bst",
    "mmoe": "elastrec.trainers.models.mmoe:Mmoe",
    "two_tower": "elastrec.trainers.models.two_tower:TwoTower",
}


def _problem(value: str, allowed: str, remedy: str = "") -> SpecError:
    return SpecError([FieldProblem("spec.model.architecture", value, allowed, remedy)])


def model_class(architecture: str) -> type[nn.Module]:
    """The class that a job file names.

    Raises:
        SpecError: unknown name, or an import path that cannot be imported, is no `nn.Module` class, or whose
            constructor and `forward` do not take what models are given.
    """
    path = _BUILT_IN.get(architecture, architecture)
    module_name, separator, class_name = path.partition(":")
    if not separator:
        raise _problem(repr(architecture), f"{', '.join(BUILT_IN_MODELS)} or package.module:Class")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        where = traceback.format_exc(limit=-1).strip().splitlines()[-1]
        raise _problem(
            repr(architecture),
            "a module that can be imported by the pods",
            f"importing {module_name} failed: {where}; install the package where the pods run or put it on PYTHONPATH",
        ) from error
    model = getattr(module, class_name, None)
    if not (inspect.isclass(model) and issubclass(model, nn.Module)):
        what = "no such name" if model is None else f"a {type(model).__name__}"
        raise _problem(repr(architecture), f"a torch.nn.Module class; {module_name}.{class_name} is {what}")
    _check_signature(architecture, model)
    return model


def takes_deduplicated(architecture: str) -> bool:
    """Whether a model's forward takes DeduplicatedFeatures: the built-in ones, and classes that say so.

    A user's class declares it by `takes_deduplicated = True`; otherwise it gets a KeyedJaggedTensor.

    Raises:
        SpecError: see `model_class`.
    """
    return architecture in _BUILT_IN or bool(getattr(model_class(architecture), "takes_deduplicated", False))


def build_model(spec: ModelSpec, embedding_bag_collection: nn.Module, schema: FeatureSchema, *, seed: int) -> nn.Module:
    """The job's model, with dense parameters that depend on the seed alone.

    Args:
        embedding_bag_collection: torchrec's or the one over parameter servers.
        seed: of the dense parameters' initial values.

    Raises:
        SpecError: the class or one of its options is wrong.
    """
    found = model_class(spec.architecture)
    _check_options(found, spec)
    _check_row_dimension(found, spec)
    _check_table_dimensions(found, spec, schema)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not schema.attention:
            return found(embedding_bag_collection, schema, **spec.options)
        bags = AttentionBags(embedding_bag_collection, schema.attention)
        model = found(bags, schema, **spec.options)
    if bags not in model.modules():
        allowed = "a model that keeps its embedding_bag_collection as an attribute, for attention to be trained with it"
        raise _problem(repr(spec.architecture), allowed, f"{', '.join(schema.attention)} ask for pooling: attention")
    return model


def _check_table_dimensions(found: type[nn.Module], spec: ModelSpec, schema: FeatureSchema) -> None:
    """Checks that a class accepts the tables' different dimensions, declared by `takes_table_dimensions = True`."""
    if not schema.dimensions or getattr(found, "takes_table_dimensions", False):
        return
    is_own = spec.architecture not in _BUILT_IN
    say = "let the class say takes_table_dimensions = True and read schema.dimensions, or " if is_own else ""
    raise SpecError(
        [
            FieldProblem(
                f"spec.tables.{table}.dimension",
                str(dimension),
                f"{schema.embedding_dimension}, as spec.model.embedding_dimension says: {spec.architecture} needs "
                "embeddings of one dimension",
                f"{say}remove the field, or choose another architecture",
            )
            for table, dimension in sorted({schema.tables[name]: d for name, d in schema.dimensions.items()}.items())
        ]
    )


def _check_signature(architecture: str, found: type[nn.Module]) -> None:
    constructor = inspect.signature(found)
    try:
        constructor.bind_partial(object(), object())
    except TypeError as error:
        raise _problem(
            repr(architecture), "a class built by Class(embedding_bag_collection, schema, **options)", str(error)
        ) from None
    try:
        inspect.signature(found.forward).bind(object(), dense_features=object(), sparse_features=object())
    except TypeError as error:
        raise _problem(
            repr(architecture), "a class with forward(self, dense_features, sparse_features)", str(error)
        ) from None


def _check_options(found: type[nn.Module], spec: ModelSpec) -> None:
    parameters = list(inspect.signature(found).parameters.values())[2:]
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = {parameter.name: parameter for parameter in parameters}
    allowed = ", ".join(known) or "none: the model has no options"
    problems = [
        FieldProblem(f"spec.model.options.{name}", repr(value), allowed)
        for name, value in spec.options.items()
        if name not in known
    ]
    problems += [
        FieldProblem(f"spec.model.options.{name}", MISSING, "a value", "the model needs this option")
        for name, parameter in known.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        and name not in spec.options
    ]
    if problems:
        raise SpecError(problems)


def _check_row_dimension(found: type[nn.Module], spec: ModelSpec) -> None:
    declared = getattr(found, "row_dimension", None)
    if declared is None:
        return
    wanted = declared(spec.embedding_dimension)
    # Servers and checkpoints know the dimension from the job file alone: they cannot import the model.
    if wanted != spec.row_dimension:
        raise _problem(
            repr(spec.architecture),
            f"rows of embedding_dimension {spec.row_dimension} for a model of your own",
            f"its row_dimension({spec.embedding_dimension}) is {wanted}: set embedding_dimension to {wanted} and let "
            "the model split the rows itself",
        )

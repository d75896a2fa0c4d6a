"""Rewrite in-place operators as functional ones, and evaluate `torch.func.vmap`.

`relu_(x)` equals `relu(x)` unless the old x, or a view of it, is read afterwards. If the graph
proves that it is not, as in most networks, nothing changes; otherwise PyTorch rewrites the program
in functional form.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from blockwright.frontend.torch.decompose import decompositions, rewritten
from blockwright.frontend.torch.names import origin
from blockwright.frontend.torch.rebound_buffers import with_rebound_buffers
from blockwright.frontend.torch.regions import (
    all_nodes,
    bodies,
    has_typed_region,
    is_typed_region,
    without_gradient_regions,
)
from blockwright.frontend.torch.shared_buffers import with_shared_buffers
from blockwright.frontend.torch.whole_copies import with_whole_copies
from blockwright.frontend.torch.writes import does_nothing, written, written_undeclared
from blockwright.frontend.torch.written_windows import with_written_windows
from blockwright.support import ImporterError

# Composite operators whose results never alias their arguments. Other composites may return an
# argument or a view of it although their schema does not say so: dropout outside of training,
# type_as of a tensor that already has the type, meshgrid, einsum.
_COMPUTES = frozenset(
    "matmul linear batch_norm layer_norm group_norm instance_norm rms_norm softmax log_softmax "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d max_pool1d max_pool2d "
    "max_pool3d avg_pool1d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "adaptive_max_pool1d scaled_dot_product_attention lstm gru rnn_tanh rnn_relu".split()
)


_DROPOUTS = frozenset(
    f"aten.{name}.default"
    for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
)


def functional(program: Any) -> Any:
    """The program without in-place operators whose side effect matters.

    Raises: ImporterError BW512 if one writes through a tensor whose elements share memory.
    """
    program = without_gradient_regions(program)
    program = with_rebound_buffers(program, _seen_through)
    module = program.graph_module
    batched = any(map(_is_transform, all_nodes(module)))
    if all(map(_harmless, all_nodes(module))) and not has_typed_region(module) and not batched:
        return program
    _refuse_repeated(program)
    _refuse_lost_statistics(module)
    changed = _changed_inputs(program)
    program = with_written_windows(program, _seen_through)
    program = with_whole_copies(program)
    program = with_shared_buffers(program, weights(program), lambda node: node.name in changed)
    _refuse_changed_constants(program)
    composites = {
        node.target
        for node in program.graph.nodes
        if node.op == "call_function"
        and getattr(node.target, "_schema", None)
        and (_may_alias(node.target) or written_undeclared(node))
    }
    with _identities_as_aliases(program):
        return rewritten(program, decompositions(composites))


def _is_transform(node: Any) -> bool:
    """Whether a node belongs to `torch.func.vmap`, which PyTorch's rewriting evaluates."""
    return getattr(node.target, "__module__", None) == "torch._functorch.predispatch"


def _refuse_repeated(program: Any) -> None:
    """Raise ImporterError BW512 if an operator writes into a tensor made by `expand`.

    PyTorch's functional form adds up the changes of all elements that share one memory location.
    """
    for node in all_nodes(program.graph_module):
        if any(_repeats(changed) for changed in written(node)):
            name = str(node.target).split(".")[1]
            raise ImporterError(
                f"{name} changes a tensor in place whose elements share memory, as after `expand`",
                code="BW512",
                help="clone the tensor before it is changed",
                notes=(origin(node),),
            )


def weights(program: Any) -> dict[str, Any]:
    """Placeholder name → tensor for parameters, buffers and lifted constants."""
    signature = program.graph_signature
    result: dict[str, Any] = {}
    for group in (
        signature.inputs_to_parameters,
        signature.inputs_to_buffers,
        signature.inputs_to_lifted_tensor_constants,
    ):
        for placeholder, path in group.items():
            held = program.state_dict.get(path)
            result[placeholder] = program.constants[path] if held is None else held
    return result


def _changed_inputs(program: Any) -> dict[str, list[Any]]:
    """Placeholders whose tensors operators write, directly or through views → those operators."""
    result: dict[str, list[Any]] = {}
    for node in program.graph.nodes:
        for value in written(node):
            for source in _seen_through(value):
                if source.op == "placeholder":
                    result.setdefault(source.name, []).append(node)
    return result


def _refuse_lost_statistics(module: Any, is_body: bool = False) -> None:
    """Raise ImporterError BW512 if a branch or loop changes running statistics of the model.

    The exporter does not notice, and PyTorch's functional form of the body loses the change.
    """
    for node in module.graph.nodes:
        sources = (s for value in written_undeclared(node) for s in _seen_through(value))
        if is_body and any(source.op == "placeholder" for source in sources):
            name = str(node.target).split(".")[1]
            raise ImporterError(
                f"{name} in a branch or loop changes running statistics from outside of it",
                code="BW512",
                help="return the new statistics from the branch or loop, and assign them after it",
                notes=(origin(node),),
            )
        for body in bodies(module, node):
            _refuse_lost_statistics(body, is_body or not is_typed_region(node))


def _refuse_changed_constants(program: Any) -> None:
    """Raise ImporterError BW512 if a model changes a tensor that is no buffer and no parameter."""
    changed = _changed_inputs(program)
    for placeholder, path in program.graph_signature.inputs_to_lifted_tensor_constants.items():
        if placeholder in changed:
            raise ImporterError(
                f"the model changes its attribute {path} in place",
                code="BW512",
                help="make it a buffer, with register_buffer: buffers are state of the "
                "compiled model",
                notes=tuple(dict.fromkeys(map(origin, changed[placeholder]))),
            )


def _repeats(node: Any) -> bool:
    """Whether a value is, or is a view of, a tensor with an axis of stride 0."""
    return any(
        isinstance(stride, int) and stride == 0
        for value in _seen_through(node)
        for stride in _strides(value)
    )


def _seen_through(node: Any) -> list[Any]:
    """A value, and all values that it is a view of."""
    result = [node]
    for value in result:
        for source in value.all_input_nodes if value.op == "call_function" else ():
            if source not in result and _is_view(value, source):
                result.append(source)
    return result


def _strides(node: Any) -> tuple[Any, ...]:
    import torch

    held = node.meta.get("val")
    return tuple(held.stride()) if isinstance(held, torch.Tensor) else ()


def _is_view(node: Any, source: Any) -> bool:
    """Whether a value aliases one of its operator's arguments."""
    import torch

    schema = getattr(node.target, "_schema", None)
    if schema is None:  # an item of several results
        return True
    if not _may_alias(node.target):
        return node.args[:1] == (source,) and any(_alias(r) is not None for r in schema.returns)
    mine, other = node.meta.get("val"), source.meta.get("val")
    if not isinstance(mine, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return bool(_memory(mine) == _memory(other))


def _memory(tensor: Any) -> Any:
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(tensor.untyped_storage())


@contextmanager
def _identities_as_aliases(program: Any) -> Generator[None, None, None]:
    """Temporarily replace operators that return their argument itself by `alias`.

    PyTorch's rewriting treats the result of dropout as a copy, also outside of training.
    """
    import torch

    before: list[tuple[Any, Any, Any, Any]] = []
    try:
        for node in program.graph.nodes:
            if _is_identity(node):
                before.append((node, node.target, node.args, node.kwargs))
                node.target, node.args, node.kwargs = (
                    torch.ops.aten.alias.default,
                    node.args[:1],
                    {},
                )
        yield
    finally:
        for node, target, args, kwargs in before:
            node.target, node.args, node.kwargs = target, args, kwargs


def _is_identity(node: Any) -> bool:
    """Whether a node is dropout outside of training, or a conversion to the type it already has."""
    name = str(node.target)
    if name in _DROPOUTS:
        return does_nothing(node)
    if name != "aten.type_as.default":
        return False
    return node.args[0].meta["val"].dtype == node.meta["val"].dtype


def _alias(value: Any) -> Any:
    """The alias annotation of a schema's argument or result."""
    return getattr(value, "alias_info", None)


def _harmless(node: Any) -> bool:
    """Whether no later node can observe that a node changed its argument."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    if schema is None or does_nothing(node):
        return True
    if not schema.is_mutable:
        return not written_undeclared(node)
    places = [i for i, a in enumerate(schema.arguments) if _alias(a) and _alias(a).is_write]
    if places != [0] or not hasattr(node.args[0], "users"):
        return False
    changed = node.args[0]
    alone = all(user is node or not _gives_view(user) for user in changed.users)
    last = all(user is node or user < node for user in changed.users)
    return alone and last and _is_fresh(changed)


def _is_fresh(node: Any) -> bool:
    """Whether a node's value has its own memory, which no other value aliases.

    The result of an in-place operator is its argument, which `_harmless` checked.
    """
    if node.op != "call_function":
        return False
    schema = getattr(node.target, "_schema", None)
    if schema is None or _may_alias(node.target):
        return False
    return all(_alias(r) is None or _alias(r).is_write for r in schema.returns)


def _may_alias(operator: Any) -> bool:
    """Whether an operator's result may alias an argument without an annotation in its schema."""
    name = str(operator).split(".")[1]
    return name == "_unsafe_view" or (operator._can_decompose() and name not in _COMPUTES)


def _gives_view(node: Any) -> bool:
    """Whether a user of a value may return an alias of it."""
    if node.op != "call_function":
        return True  # an output, which would then show the change
    schema = getattr(node.target, "_schema", None)
    if schema is None or _may_alias(node.target):
        return True
    return any(_alias(r) is not None for r in schema.returns)

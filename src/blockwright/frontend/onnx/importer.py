"""Import of ONNX models.

    mod = from_onnx("model.onnx")     # IRModule with the graph function "main"

Inputs, in order, become function parameters, initializers become named constants. A dimension with
a name becomes a symbol of that name, and one without a value a symbol of its own. A node is
evaluated at import if its operands are known or are sizes (`fold`); else it is converted by the row
or the converter of its operator (`converters`), or replaced by the body of the function that
defines the operator. All uncovered operators are reported at once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from blockwright import ir
from blockwright.frontend.fallback import FALLBACKS, Fallback
from blockwright.frontend.loops import Loops
from blockwright.frontend.onnx.call import Call, NeedsBranches, Value
from blockwright.frontend.onnx.converters import CONVERTERS
from blockwright.frontend.onnx.dimensions import Dimensions, identifier
from blockwright.frontend.onnx.fold import ALWAYS, fold, type_of
from blockwright.frontend.onnx.framework_calls import framework_call, has_runtime
from blockwright.frontend.onnx.functions import body_of, has_body, type_proto
from blockwright.frontend.onnx.model import (
    Loaded,
    attribute_value,
    element_type,
    load,
    onnx_package,
    to_numpy,
)
from blockwright.frontend.onnx.scope import Scope
from blockwright.frontend.onnx.sizes import Arithmetic, Floats, Sizes, array_of
from blockwright.frontend.onnx.versions import OlderVersion, in_newest_version
from blockwright.graph import GraphBuilder, constant, shape_value
from blockwright.support import BlockwrightError, ImporterError


class Importer:
    """State of one import.

    Attributes:
        needed: inputs whose values have to be known, as found when the import fails with BW523.
    """

    def __init__(
        self,
        loaded: Loaded,
        fixed: Mapping[str, Any],
        branches: bool = False,
        fallback: Fallback = "error",
    ) -> None:
        self.loaded = loaded
        self.fixed = fixed
        self.falls_back = fallback == "framework" and has_runtime()
        self.fallbacks: dict[str, list[str]] = {}
        self.builder = GraphBuilder(dataflow=not branches, unequal="broadcast")
        self.dimensions = Dimensions()
        self.sizes = Arithmetic(self.builder.analyzer)
        self.scope = Scope(loaded.opsets)
        self.loops = Loops()
        self.needed: set[str] = set()
        self.inputs: list[str] = []
        self._tensors: dict[int, tuple[Any, ir.GraphExpr]] = {}
        self._floats: dict[int, tuple[Any, Floats]] = {}
        self._labels: dict[int, str] = {}
        self._schemas: dict[tuple[str, str, int], Any] = {}

    # ---------------------------------------------------------------------------------- graphs

    def run(self) -> ir.IRModule:
        """Import the model; raises ImporterError listing all uncovered operators."""
        graph = self.loaded.graph
        names = [value.name for value in graph.input]
        unknown = [name for name in self.fixed if name not in names]
        if unknown:
            raise ImporterError(
                f"the model has no input {unknown[0]!r}",
                code="BW524",
                help=f"inputs: {', '.join(names) or 'none'}",
            )
        self.initializers(graph)
        held = self.scope.values
        free = [v for v in graph.input if v.name not in held and v.name not in self.fixed]
        names_of = {v.name: self.dimensions.unique(identifier(v.name)) for v in free}
        self.dimensions.declare(free)
        for value in graph.input:
            if value.name in self.fixed:
                self._fix(value)
            elif value.name not in held:
                self._parameter(value, names_of[value.name])
        self.nodes(graph.node)
        return self._finish(graph)

    def initializers(self, graph: Any) -> None:
        """Bind the constants of a graph in the current scope."""
        for tensor in graph.initializer:
            self._constant(tensor.name, to_numpy(tensor, self.loaded.folder))
        for sparse in graph.sparse_initializer:
            raise ImporterError(
                f"the initializer {sparse.values.name!r} is sparse",
                code="BW504",
                help="store it as a dense tensor",
            )

    def _constant(self, name: str, value: np.ndarray[Any, Any]) -> None:
        self._labels[id(value)] = name
        self.scope.bind(name, value, frozenset())

    def _fix(self, value: Any) -> None:
        """Bind an input to the value that the caller gave."""
        wanted = element_type(value.type.tensor_type.elem_type, f"input {value.name!r}")
        given = np.asarray(self.fixed[value.name])
        if ir.dtype_of(given.dtype) is not wanted:
            raise ImporterError(
                f"the value of the input {value.name!r} has the type {given.dtype}, not {wanted}",
                code="BW524",
                help=f"np.asarray(value, {str(wanted)!r})",
            )
        self._constant(value.name, given.copy())

    def _parameter(self, value: Any, name: str) -> None:
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            raise ImporterError(
                f"the input {value.name!r} is a {str(kind).removesuffix('_type')}, not a tensor",
                code="BW504",
                help="change the model to take tensors",
            )
        dtype = element_type(value.type.tensor_type.elem_type, f"input {value.name!r}")
        shape = self.dimensions.shape(value)
        param = self.builder.param(name, ir.TensorInfo(shape, dtype))
        self.inputs.append(value.name)
        self.scope.bind(value.name, param, frozenset({value.name}))

    def nodes(self, nodes: Sequence[Any]) -> None:
        """Import the nodes of a graph or function in the current scope."""
        self._check_covered(nodes)
        for node in nodes:
            self._node(node)

    def subgraph(
        self, graph: Any, operands: Sequence[Value], depends: frozenset[str]
    ) -> list[Value]:
        """Import the body of a control-flow node, with values of its inputs; return its outputs."""
        outer = self.scope
        self.scope = Scope(outer.opsets, outer, outer.attributes)
        try:
            self.initializers(graph)
            for value, operand in zip(graph.input, operands, strict=True):
                self.scope.bind(value.name, operand, depends)
            self.nodes(graph.node)
            return [self.scope.value(value.name) for value in graph.output]
        finally:
            self.scope = outer

    @contextmanager
    def inside(self, builder: GraphBuilder) -> Generator[None]:
        """Emit to a builder of a branch or of the body of a loop."""
        outer, known, sizes = self.builder, dict(self._tensors), self.sizes
        self.builder, self.sizes = builder, Arithmetic(builder.analyzer)
        try:
            yield
        finally:
            self.builder, self._tensors, self.sizes = outer, known, sizes

    # ----------------------------------------------------------------------------------- nodes

    def _node(self, node: Any) -> None:
        operands = [self.scope.value(name) if name else None for name in node.input]
        while operands and operands[-1] is None:
            operands.pop()
        depends = self._depends(node)
        label = f"{node.op_type} {node.name}".rstrip()
        try:
            results = self._results(node, operands)
        except BlockwrightError as error:
            raise ImporterError(
                f"{label}: {error.message}", code=error.code, help=error.help
            ) from error
        except NeedsBranches:
            raise
        except Exception as error:
            raise ImporterError(
                f"{label} cannot be converted: {type(error).__name__}: {error}",
                help="onnx.checker.check_model says whether the model is valid; report it if it is",
            ) from error
        for name, value in zip(node.output, results, strict=False):
            if name:
                self.scope.bind(name, value, depends)

    def _depends(self, node: Any) -> frozenset[str]:
        """The model inputs on which the values of a node depend."""
        empty: frozenset[str] = frozenset()
        if node.op_type in ("Shape", "Size"):
            return empty
        parts = [self.scope.depends(name) for name in _names_read(node)]
        return empty.union(*parts)

    def sources(self, name: str) -> list[str]:
        """The model inputs on which a value depends, in order."""
        depends = self.scope.depends(name)
        return [each for each in self.inputs if each in depends]

    def _results(self, node: Any, operands: list[Value]) -> Sequence[Value]:
        domain = "" if node.domain == "ai.onnx" else node.domain
        node = self._with_attributes(node)
        function = self.loaded.functions.get((domain, node.op_type, node.overload))
        if function is not None:
            return self._expand(function, node, operands, domain)
        schema = self._schema(domain, node.op_type)
        attrs = {a.name: attribute_value(a, self.loaded.folder) for a in node.attribute}
        version = schema.since_version if schema is not None else 1
        call = Call(self, node, version, operands, attrs, _defaults(schema))
        if domain:
            return self._converted(call, domain, schema)
        try:
            return in_newest_version(call, lambda each: self._converted(each, domain, schema))
        except OlderVersion as older:
            if not self.falls_back:
                raise
            try:
                return self._framework_call(call, domain)
            except ImporterError:
                raise older from None

    def _converted(self, call: Call, domain: str, schema: Any) -> Sequence[Value]:
        """Convert a node: by folding, its converter, its function body, or ONNX Runtime."""
        known = fold(call)
        if known is None:
            return self._left_to_run(call, domain, schema)
        if not any(isinstance(value, Floats) for value in known):
            return known
        results: list[Value] = []
        for made, value in zip(self._left_to_run(call, domain, schema), known, strict=True):
            if isinstance(value, Floats):
                self._floats[id(made)] = made, value
            results.append(made if isinstance(value, Floats) else value)
        return results

    def _left_to_run(self, call: Call, domain: str, schema: Any) -> Sequence[Value]:
        """Convert a node that is not evaluated at import."""
        convert = CONVERTERS.find(domain, call.op)
        if convert is not None:
            result: Any = convert(call)
            if result is not NotImplemented:
                several = isinstance(result, (list, tuple))
                return cast("Sequence[Value]", result) if several else [result]
        if not has_body(schema):
            return self._framework_call(call, domain)
        types = [self._type(value) for value in call.operands]
        body = body_of(schema, self.scope.opsets.get(domain, 1), call.node, types)
        assert body is not None
        return self._expand(body, call.node, call.operands, domain)

    def _framework_call(self, call: Call, domain: str) -> Sequence[Value]:
        """The results of a node that ONNX Runtime computes.

        Raises: ImporterError BW501 if it must not, or is not installed.
        """
        if not self.falls_back:
            raise ImporterError(
                "the operator is not covered with these inputs and attributes",
                code="BW501",
                help='replace it, or leave fallback at "framework"'
                if has_runtime()
                else "pip install onnxruntime, which then runs it; or replace it",
            )
        if self.builder.dataflow:
            raise NeedsBranches  # the call may draw random numbers
        label = f"{domain}.{call.op}".lstrip(".")
        self.fallbacks.setdefault(label, []).append(call.name or "unnamed")
        return framework_call(call, label, self.scope.opsets.get(domain, 1))

    def _expand(
        self, function: Any, node: Any, operands: list[Value], domain: str
    ) -> Sequence[Value]:
        """Import the body of a function in a scope of its own."""
        outer = self.scope
        opsets = {**outer.opsets, **{o.domain: o.version for o in function.opset_import}}
        attributes = {a.name: a for a in function.attribute_proto}
        schema = self._schema(domain, node.op_type)
        if schema is not None:
            attributes |= {
                name: a.default_value
                for name, a in schema.attributes.items()
                if a.default_value.name
            }
        attributes |= {a.name: a for a in node.attribute}
        inner = Scope(opsets, None, attributes)
        for position, name in enumerate(function.input):
            given = position < len(operands)
            source = node.input[position] if given else ""
            depends = outer.depends(source) if source else frozenset[str]()
            inner.bind(name, operands[position] if given else None, depends)
        self.scope = inner
        try:
            self.nodes(function.node)
            wanted = zip(function.output, node.output, strict=False)
            return [inner.value(name) if used else None for name, used in wanted]
        finally:
            self.scope = outer

    def _with_attributes(self, node: Any) -> Any:
        """A node of a function body with the attributes of the call that its own refer to."""
        if not any(a.ref_attr_name for a in node.attribute):
            return node
        result = onnx_package().NodeProto()
        result.CopyFrom(node)
        del result.attribute[:]
        for attribute in node.attribute:
            given = self.scope.attributes.get(attribute.ref_attr_name)
            if not attribute.ref_attr_name:
                result.attribute.append(attribute)
            elif given is not None:
                named = result.attribute.add()
                named.CopyFrom(given)
                named.name = attribute.name
        return result

    def _schema(self, domain: str, name: str) -> Any:
        """The definition of an operator in the opset of the current scope; None if unknown."""
        version = self.scope.opsets.get(domain, 1)
        key = (domain, name, version)
        if key not in self._schemas:
            defs = onnx_package().defs
            try:
                self._schemas[key] = defs.get_schema(name, version, domain)
            except defs.SchemaError:
                self._schemas[key] = None
        return self._schemas[key]

    def _check_covered(self, nodes: Iterable[Any]) -> None:
        """Raise ImporterError BW501 with all nodes that have neither a converter nor a body."""
        missing: dict[str, list[str]] = {}
        for node in nodes:
            domain = "" if node.domain == "ai.onnx" else node.domain
            if (domain, node.op_type, node.overload) in self.loaded.functions:
                continue
            schema = self._schema(domain, node.op_type)
            version = schema.since_version if schema is not None else 1
            known = CONVERTERS.find(domain, node.op_type) or has_body(schema)
            if known or (not domain and node.op_type in ALWAYS):
                continue
            if self.falls_back:
                continue  # ONNX Runtime says whether it runs the node
            label = f"{domain}.{node.op_type}".lstrip(".")
            missing.setdefault(f"{label} (version {version})", []).append(node.name or "unnamed")
        if missing:
            count = sum(map(len, missing.values()))
            raise ImporterError(
                f"{count} node{'s' * (count > 1)} with unsupported operators: "
                + ", ".join(missing),
                code="BW501",
                help="replace these operators"
                if has_runtime()
                else "pip install onnxruntime, which then runs them; or replace these operators",
                notes=tuple(f"{name}: nodes {', '.join(at)}" for name, at in missing.items()),
            )

    # ---------------------------------------------------------------------------------- values

    def tensor(self, value: Value) -> ir.GraphExpr:
        """A value as a tensor; one that is known becomes a constant."""
        if isinstance(value, ir.GraphExpr):
            return value
        held = self._tensors.get(id(value))
        if held is None:
            if isinstance(value, Sizes):
                made = self._size_tensor(value)
            else:
                made = constant(value, self._labels.get(id(value), ""))
            held = self._tensors[id(value)] = value, made
        return held[1]

    def noted(self, value: Value) -> Value:
        """The elements of a tensor that the program computes in floats from sizes, if noted."""
        return self._floats.get(id(value), (value, value))[1]

    def dtype(self, value: Value) -> ir.DType:
        """The element type of a value in the model."""
        return type_of(value)

    def _size_tensor(self, sizes: Sizes) -> ir.GraphExpr:
        """A tensor of sizes: one element is filled for each, then they are joined."""
        int64 = ir.dtype_of("int64")
        parts = [
            self.builder.op("full", shape=(1,), fill_value=ir.as_expr(v, int64), dtype=sizes.dtype)
            for v in sizes.items.reshape(-1).tolist()
        ]
        joined = parts[0] if len(parts) == 1 else self.builder.op("concat", *parts, axis=0)
        dims = [ir.const(d, int64) for d in sizes.items.shape]
        return self.builder.op("reshape", joined, shape_value(dims))

    def _type(self, value: Value) -> Any:
        """The `TypeProto` of a value, for functions that depend on the types of their inputs."""
        if value is None:
            return onnx_package().TypeProto()
        if isinstance(value, Sizes):
            return type_proto(value.items.shape, value.dtype)
        array = array_of(value)
        if array is not None:
            return type_proto(array.shape, ir.dtype_of(array.dtype))
        info = value.tensor_info
        assert info.dtype is not None
        return type_proto(info.shape, info.dtype)

    def _finish(self, graph: Any) -> ir.IRModule:
        if not graph.output:
            raise ImporterError("the model has no output", code="BW505")
        results = tuple(self.tensor(self.scope.value(value.name)) for value in graph.output)
        kept = tuple(
            self.builder.op("reshape", r, shape_value(r.tensor_info.shape or ()))
            if isinstance(r, ir.Constant) or r in self.builder.params
            else r
            for r in results
        )
        body = kept[0] if len(kept) == 1 else ir.TupleExpr(kept)
        function = self.builder.finish("main", body)
        count = len(self.inputs)
        attrs: dict[str, Any] = {
            "outputs_tree": {"list": list(range(len(kept)))},
            "output_names": [value.name for value in graph.output],
        }
        if [p.name for p in self.builder.params] != self.inputs:
            attrs["inputs_tree"] = {
                "names": self.inputs,
                "positional": count,
                "trees": list(range(count)),
            }
        if self.fallbacks:
            function = function.replace(pure=False)
            attrs[FALLBACKS] = {n: tuple(nodes) for n, nodes in self.fallbacks.items()}
        return ir.IRModule({"main": function, **self.loops.functions}, attrs)


def _names_read(node: Any) -> Iterator[str]:
    """Names of the values that a node reads, also in the graphs of its attributes."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _names_read(inner)


def _defaults(schema: Any) -> dict[str, Any]:
    """Default values of an operator's attributes."""
    if schema is None:
        return {}
    return {
        name: attribute_value(attribute.default_value, None)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }


def from_onnx(
    model: Any, fixed: Mapping[str, Any] | None = None, fallback: Fallback = "framework"
) -> ir.IRModule:
    """Import an ONNX model.

    Args:
        model: a path, bytes or a `ModelProto`.
        fixed: values of inputs that become constants instead of parameters, by name.
        fallback: "framework": ONNX Runtime runs operators that are not covered, if it is installed;
            "error": they are an error.

    Raises:
        ImporterError: BW501 lists all uncovered operators; BW504–BW507 name an unsupported part;
            BW520 `onnx` is not installed, BW521 the model cannot be read, BW522 its opset version
            is not supported, BW523 a value must be known at import, BW524 an unknown or unsuitable
            fixed input, BW525 an input of unknown rank.
    """
    loaded = load(model)
    try:
        return Importer(loaded, fixed or {}, fallback=fallback).run()
    except NeedsBranches:
        return Importer(loaded, fixed or {}, branches=True, fallback=fallback).run()

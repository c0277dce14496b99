"""AMD's own pseudocode of an instruction, evaluated with NumPy over many lanes at once.

The text comes with tinygrad (`tinygrad.runtime.autogen.amd.cdna.str_pcode`), which takes it from AMD's
manual. A value is raw bits with a type, so that a signalling NaN stays one; branches become masks. Nothing
here is shared with `tqkernel.gfx950`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from tinygrad.runtime.autogen.amd.cdna.str_pcode import PCODE

U64 = np.uint64
Array = np.ndarray


@cache
def texts() -> dict[str, str]:
    """Pseudocode by lower-case mnemonic, encoding suffixes removed (the forms of one mnemonic agree)."""
    found: dict[str, str] = {}
    for member, text in PCODE.items():
        found.setdefault(re.sub(r"_E(32|64)$", "", member.name).lower(), text)
    return found


# ---------------------------------------------------------------- floats as bits

_FLOAT = {16: np.float16, 32: np.float32, 64: np.float64}
_BITS = {16: np.uint16, 32: np.uint32, 64: np.uint64}
EXPONENT_BITS = {("f", 16): 5, ("f", 32): 8, ("f", 64): 11, ("bf", 16): 8}


def round_bf16(x: Array) -> Array:
    """float64 -> bits of the nearest bf16, ties to even."""
    bits = np.asarray(odd_float32(x)).view(np.uint32).astype(U64)
    rounded = (bits + 0x7FFF + ((bits >> U64(16)) & U64(1))) >> U64(16)
    return np.where(np.isnan(x), U64(0x7FC0), rounded)


def odd_float32(x: Array) -> Array:
    """float64 -> float32 rounded to odd, so that one more rounding to fewer bits is right."""
    narrow = x.astype(np.float32)
    wide = narrow.astype(np.float64)
    inexact = np.isfinite(narrow) & (wide != x) & ~np.isnan(x)
    bits = narrow.view(np.uint32).copy()
    bits = np.where(inexact & (np.abs(wide) > np.abs(x)), bits - np.uint32(1), bits)
    return np.where(inexact, bits | np.uint32(1), bits).astype(np.uint32).view(np.float32)


def float_of(bits: Array, kind: str, width: int) -> Array:
    """Bits -> float64 values."""
    if kind == "bf":
        return (bits << U64(16)).astype(np.uint32).view(np.float32).astype(np.float64)
    return bits.astype(_BITS[width]).view(_FLOAT[width]).astype(np.float64)


def bits_of(x: Array, kind: str, width: int) -> Array:
    """float64 values -> bits, rounded to nearest even."""
    x = np.asarray(x, dtype=np.float64)
    if kind == "bf":
        return round_bf16(x)
    return x.astype(_FLOAT[width]).view(_BITS[width]).astype(U64)


def _fused(a: float, b: float, c: float) -> Fraction | float:
    if not np.isfinite([a, b, c]).all():
        return c if np.isfinite([a, b]).all() else a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return exact if exact else a * b + c


def _nearest_double_odd(value: Fraction | float) -> float:
    """The double next to a fraction with its last bit set if inexact."""
    if isinstance(value, float):
        return value
    try:
        near = float(value)
    except OverflowError:
        return np.copysign(np.finfo(np.float64).max, float(value > 0) - 0.5)
    if Fraction(near) == value:
        return near
    bits = int(np.float64(near).view(np.int64))
    if abs(Fraction(near)) > abs(value):
        bits -= 1
    return float(np.int64(bits | 1).view(np.float64))


def _nearest_double(value: Fraction | float) -> float:
    if isinstance(value, float):
        return value
    try:
        return float(value)
    except OverflowError:
        return float(np.copysign(np.inf, float(value > 0) - 0.5))


def fused_multiply_add(a: Array, b: Array, c: Array, width: int) -> Array:
    """a * b + c of float64 arrays, exact, then rounded once: to double (64), or to odd for less."""
    rounding = _nearest_double if width == 64 else _nearest_double_odd
    return np.array([rounding(_fused(*row)) for row in np.stack([a, b, c], -1).tolist()], dtype=np.float64)


# ---------------------------------------------------------------- typed values


@dataclass
class Value:
    """Lanes of `width` bits: kind u, i, f, bf or b (untyped bits)."""

    bits: Array
    kind: str
    width: int

    def integer(self) -> Array:
        """Bits as a uint64 two's complement image, sign-extended if signed."""
        if self.kind == "i" and self.width < 64:
            shift = U64(64 - self.width)
            return ((self.bits << shift).view(np.int64) >> np.int64(shift)).view(U64)
        return self.bits

    def real(self) -> Array:
        if self.kind in ("f", "bf"):
            return float_of(self.bits, self.kind, self.width)
        if self.kind == "i":
            return self.integer().view(np.int64).astype(np.float64)
        return self.bits.astype(np.float64)

    def truth(self) -> Array:
        return self.bits != 0


def mask(bits: Array, width: int) -> Array:
    return bits & U64((1 << width) - 1)


def make(bits: Array, kind: str, width: int) -> Value:
    return Value(mask(bits.view(U64) if bits.dtype == np.int64 else bits.astype(U64), width), kind, width)


def real(x: Array, like: Value) -> Value:
    return Value(bits_of(x, like.kind, like.width), like.kind, like.width)


def typed(value: Value, name: str) -> Value:
    """`.f32` and its like: the low bits under another type."""
    kind, width = re.match(r"(bf|[uifb])(\d+)", name).groups()  # type: ignore[union-attr]
    return make(value.bits, kind, int(width))


def convert(value: Value, kind: str, width: int) -> Value:
    """`32'F(x)`."""
    if kind == "f":
        if value.kind in ("f", "bf"):
            return Value(bits_of(value.real(), "f", width), "f", width)
        if value.kind == "b" or value.kind == "literal":
            return make(value.bits, "f", width)
        return Value(bits_of(value.real(), "f", width), "f", width)
    return make(value.integer(), kind, width)


# ---------------------------------------------------------------- the language

_TOKEN = re.compile(
    r"\s*(?://[^\n]*|(?P<string>\"[^\"]*\")"
    r"|(?P<cast>\d+'[UIFB](?=\())|(?P<sized>\d+'-?(?:0x[0-9a-fA-F]+|\d+(?:\.\d+)?)U?)"
    r"|(?P<type>\d+'[UIFB])"
    r"|(?P<number>0x[0-9a-fA-F]+(?:ULL|LL|U)?|\d+\.\d+F?|\d+(?:ULL|LL|U)?)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<operator>\*\*|<<|>>|<>|<=|>=|==|!=|&&|\|\||\+=|-=|[-+*/%&|^~!?:=<>()\[\]{},;.]))"
)


def tokenize(text: str) -> list[tuple[str, str]]:
    tokens = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match:
            raise SyntaxError(f"pseudocode at {text[at : at + 30]!r}")
        at = match.end()
        if match.lastgroup:
            tokens.append((match.lastgroup, match[match.lastgroup]))
    return tokens


class Frame:
    """Variables of one evaluation; `active` are the lanes that the current branch covers."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.names: dict[str, Any] = {}
        self.active = np.ones(lanes, dtype=bool)
        self.returned: Value | None = None

    def constant(self, value: int, kind: str, width: int) -> Value:
        return make(np.full(self.lanes, value & (2**64 - 1), dtype=U64), kind, width)


Node = tuple[Any, ...]

_PRECEDENCE = [
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!=", "<>"), ("<", ">", "<=", ">="), ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"), ("**",),
]  # fmt: skip


class Parser:
    def __init__(self, text: str) -> None:
        self.tokens = [*tokenize(text), ("end", "")]
        self.at = 0

    def peek(self, offset: int = 0) -> str:
        return self.tokens[min(self.at + offset, len(self.tokens) - 1)][1]

    def take(self, expected: str | None = None) -> str:
        kind, text = self.tokens[self.at]
        if expected is not None and text != expected:
            raise SyntaxError(f"expected {expected!r}, found {text!r}")
        self.at += 1
        return text

    def accept(self, text: str) -> bool:
        if self.peek() == text:
            self.at += 1
            return True
        return False

    def block(self, *ends: str) -> list[Node]:
        statements = []
        while True:
            while self.accept(";"):
                pass
            if self.peek() in ends or self.tokens[self.at][0] == "end":
                return statements
            statements.append(self.statement())

    def statement(self) -> Node:
        if self.accept("if"):
            branches = []
            condition = self.expression()
            self.take("then")
            branches.append((condition, self.block("elsif", "else", "endif")))
            while self.accept("elsif"):
                condition = self.expression()
                self.take("then")
                branches.append((condition, self.block("elsif", "else", "endif")))
            otherwise = self.block("endif") if self.accept("else") else []
            self.take("endif")
            return ("if", branches, otherwise)
        if self.accept("for"):
            name = self.take()
            self.take("in")
            first = self.expression()
            self.take(":")
            last = self.expression()
            self.take("do")
            body = self.block("endfor")
            self.take("endfor")
            return ("for", name, first, last, body)
        if self.accept("break"):
            return ("break",)
        if self.accept("return"):
            return ("return", self.expression())
        if self.accept("declare"):
            name = self.take()
            self.take(":")
            kind = self.take()
            size = 0
            if self.accept("["):
                size = int(self.take())
                self.take("]")
            return ("declare", name, kind, size)
        target = self.postfix()
        for operator in ("+=", "-="):
            if self.accept(operator):
                return ("assign", target, ("binary", operator[0], target, self.expression()))
        self.take("=")
        if self.accept("lambda"):
            self.take("(")
            parameters = [self.take()]
            while self.accept(","):
                parameters.append(self.take())
            self.take(")")
            self.take("(")
            starts = self.peek() in ("declare", "if")
            body = self.block(")") if starts else [("return", self.expression())]
            self.take(")")
            return ("lambda", target[1], parameters, body)
        return ("assign", target, self.expression())

    def expression(self) -> Node:
        condition = self.binary(0)
        if self.accept("?"):
            then = self.expression()
            self.take(":")
            return ("choose", condition, then, self.expression())
        return condition

    def binary(self, level: int) -> Node:
        if level == len(_PRECEDENCE):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _PRECEDENCE[level] and self.tokens[self.at][0] == "operator":
            operator = self.take()
            left = ("binary", operator, left, self.binary(level + 1))
        return left

    def unary(self) -> Node:
        for operator in "-+!~":
            if self.accept(operator):
                return ("unary", operator, self.unary())
        return self.postfix()

    def postfix(self) -> Node:
        node = self.primary()
        while True:
            if self.accept("."):
                node = ("type", node, self.take())
            elif self.accept("["):
                high = self.expression()
                low = [self.expression()] if self.accept(":") else []
                node = ("slice" if low else "index", node, high, *low)
                self.take("]")
            else:
                return node

    def primary(self) -> Node:
        kind, text = self.tokens[self.at]
        self.at += 1
        if text == "(":
            node = self.expression()
            self.take(")")
            return node
        if text == "{":
            parts = [self.expression()]
            while self.accept(","):
                parts.append(self.expression())
            self.take("}")
            return ("concat", parts)
        if kind == "cast":
            width, letter = text.split("'")
            self.take("(")
            node = self.expression()
            self.take(")")
            return ("cast", letter.lower(), int(width), node)
        if kind == "sized":
            width, digits = text.split("'")
            if "." in digits:
                return ("float", float(digits), int(width))
            return ("integer", int(digits.rstrip("U"), 0), "u" if digits.endswith("U") else "i", int(width))
        if kind == "number":
            if "." in text:
                return ("float", float(text.rstrip("F")), 32 if text.endswith("F") else 64)
            letter = "u" if "U" in text else "i"
            value = int(text.rstrip("UL"), 0)
            width = 64 if "LL" in text else 32
            return (
                "integer",
                value,
                "literal" if text.startswith("0x") and "L" not in text else letter,
                width,
            )
        if kind == "name":
            if self.accept("("):
                arguments = []
                while not self.accept(")"):
                    arguments.append(self.expression())
                    self.accept(",")
                return ("call", text, arguments)
            return ("name", text)
        raise SyntaxError(f"unexpected {text!r}")


def _choose(active: Array, new: Value, old: Value | None) -> Value:
    if old is None:
        return new
    return Value(np.where(active, new.bits, old.bits), new.kind, new.width)


class Evaluator:
    """Executes a parsed program over a frame."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    # statements

    def run(self, statements: list[Node]) -> None:
        for statement in statements:
            getattr(self, f"do_{statement[0]}")(*statement[1:])

    def do_if(self, branches: list[tuple[Node, list[Node]]], otherwise: list[Node]) -> None:
        frame = self.frame
        before, left = frame.active, frame.active
        ended = np.zeros(frame.lanes, dtype=bool)
        for condition, body in branches:
            truth = self.value(condition).truth()
            frame.active = left & truth
            entered = frame.active
            self.run(body)
            ended |= entered & ~frame.active
            left = left & ~truth
        frame.active = left
        self.run(otherwise)
        ended |= left & ~frame.active
        frame.active = before & ~ended

    def do_for(self, name: str, first: Node, last: Node, body: list[Node]) -> None:
        before = self.frame.active
        for i in range(int(self.value(first).bits[0]), int(self.value(last).bits[0]) + 1):
            self.frame.names[name] = self.frame.constant(i, "i", 32)
            self.run(body)
        self.frame.active = before

    def do_break(self) -> None:
        self.frame.active = np.zeros(self.frame.lanes, dtype=bool)

    def do_return(self, node: Node) -> None:
        frame = self.frame
        frame.returned = _choose(frame.active, self.value(node), frame.returned)
        frame.active = np.zeros(frame.lanes, dtype=bool)

    def do_declare(self, name: str, kind: str, size: int) -> None:
        width, letter = kind.split("'")
        zero = self.frame.constant(0, letter.lower(), int(width))
        if name not in self.frame.names:
            self.frame.names[name] = [zero] * size if size else zero

    def do_lambda(self, name: str, parameters: list[str], body: list[Node]) -> None:
        def call(*arguments: Value) -> Value:
            inner = Frame(self.frame.lanes)
            inner.names = dict(self.frame.names) | dict(zip(parameters, arguments, strict=True))
            Evaluator(inner).run(body)
            assert inner.returned is not None
            return inner.returned

        self.frame.names[name] = call

    def do_assign(self, target: Node, node: Node) -> None:
        value = self.value(node)
        frame = self.frame
        if not isinstance(value, Value):  # a rounding mode
            frame.names[target[1]] = value
            return
        kind = None
        if target[0] == "type":
            kind, target = target[2], target[1]
        if target[0] in ("slice", "index") and target[1][0] == "type":  # D0.u32[31 : 0]
            target = (target[0], target[1][1], *target[2:])
        if kind is not None:
            if re.match(r"b?f", kind) and value.kind in ("f", "bf"):
                width = int(re.sub(r"\D", "", kind))
                letter = re.sub(r"\d", "", kind)
                if (value.kind, value.width) != (letter, width):
                    value = Value(bits_of(value.real(), letter, width), letter, width)
            else:
                value = typed(make(value.integer(), "u", 64), kind)
        if target[0] == "name":
            name = target[1]
            old = frame.names.get(name)
            if (
                isinstance(old, Value)
                and kind is not None
                and old.width > value.width
                and name in ("D0", "VDATA")
            ):
                value = Value(_merge(old.bits, value.bits, 0, value.width), old.kind, old.width)
            frame.names[name] = _choose(frame.active, value, old if isinstance(old, Value) else None)
            return
        base = target[1]
        if target[0] == "index":
            if base[1] == "MEM":
                frame.names["MEM"] = _choose(frame.active, value, frame.names["MEM"])
                return
            if target[2] == ("name", "laneId"):
                frame.names["MASK"] = _choose(frame.active, value, frame.names.get("MASK"))
                return
            old = frame.names[base[1]]
            position = self.value(target[2]).bits
            if isinstance(old, list):
                i = int(position[0])
                old[i] = _choose(frame.active, value, old[i])
                return
            one = U64(1) << position
            merged = (old.bits & ~one) | np.where(value.bits & U64(1) != 0, one, U64(0))
            frame.names[base[1]] = _choose(frame.active, Value(merged, old.kind, old.width), old)
            return
        high, low = (int(self.value(node).bits[0]) for node in target[2:])
        old = frame.names.get(base[1]) or frame.constant(0, "b", 64)
        merged = _merge(old.bits, value.bits, low, high - low + 1)
        frame.names[base[1]] = _choose(frame.active, Value(merged, old.kind, max(old.width, high + 1)), old)

    # expressions

    def value(self, node: Node) -> Any:
        return getattr(self, f"on_{node[0]}")(*node[1:])

    def on_integer(self, value: int, kind: str, width: int) -> Value:
        return self.frame.constant(value, kind, width)

    def on_float(self, value: float, width: int) -> Value:
        return Value(bits_of(np.full(self.frame.lanes, value), "f", width), "f", width)

    def on_name(self, name: str) -> Any:
        if name == "INF":
            return self.on_float(np.inf, 64)
        if name == "PI":
            return self.on_float(np.pi, 64)
        if name in self.frame.names:
            return self.frame.names[name]
        raise NameError(name)

    def on_concat(self, parts: list[Node]) -> Value:
        total, width = np.zeros(self.frame.lanes, dtype=U64), 0
        for part in reversed(parts):
            value = self.value(part)
            total = total | (value.bits << U64(width))
            width += value.width
        return make(total, "b", width)

    def on_cast(self, kind: str, width: int, node: Node) -> Value:
        return convert(self.value(node), kind, width)

    def on_type(self, node: Node, name: str) -> Value:
        value = self.value(node)
        return value[name] if isinstance(value, dict) else typed(value, name)

    def on_index(self, node: Node, position: Node) -> Value:
        if node[0] == "name" and node[1] == "MEM":
            return self.frame.names["MEM"]
        if position == ("name", "laneId"):
            return self.frame.names["CARRY"]
        base, at = self.value(node), self.value(position).bits
        if isinstance(base, list):
            stack = np.stack([value.bits for value in base])
            at = np.minimum(at, U64(len(base) - 1)).astype(
                np.int64
            )  # lanes of other branches may be out of range
            return Value(stack[at, np.arange(self.frame.lanes)], base[0].kind, base[0].width)
        return make((base.bits >> at) & U64(1), "u", 1)

    def on_slice(self, node: Node, high: Node, low: Node) -> Value:
        base = self.value(node)
        first, last = int(self.value(high).bits[0]), int(self.value(low).bits[0])
        if first < last:  # reversed
            total = np.zeros(self.frame.lanes, dtype=U64)
            for i in range(first, last + 1):
                total |= ((base.bits >> U64(i)) & U64(1)) << U64(last - i)
            return make(total, base.kind, last - first + 1)
        return make(base.bits >> U64(last), "u", first - last + 1)

    def on_choose(self, condition: Node, then: Node, otherwise: Node) -> Value:
        truth, a, b = self.value(condition).truth(), self.value(then), self.value(otherwise)
        return Value(np.where(truth, a.bits, b.bits), a.kind, max(a.width, b.width))

    def on_unary(self, operator: str, node: Node) -> Value:
        a = self.value(node)
        if operator == "+":
            return a
        if operator == "!":
            return make((~a.truth()).astype(U64), "u", 1)
        if operator == "~":
            return make(~a.bits, a.kind, a.width)
        if a.kind in ("f", "bf"):
            return make(a.bits ^ U64(1 << (a.width - 1)), a.kind, a.width)
        return make(U64(0) - a.bits, a.kind, a.width)

    def on_binary(self, operator: str, left: Node, right: Node) -> Value:
        a, b = self.value(left), self.value(right)
        if operator in ("&&", "||"):
            truth = (a.truth() & b.truth()) if operator == "&&" else (a.truth() | b.truth())
            return make(truth.astype(U64), "u", 1)
        if "f" in a.kind or "f" in b.kind:
            return self.real_binary(operator, a, b)
        kind = "i" if a.kind == "i" and b.kind == "i" else "u"
        width = max(a.width, b.width)
        x, y = a.integer(), b.integer()
        if operator in ("<<", ">>"):
            shifted = (y >= U64(64)) | (y >= U64(a.width)) & (operator == "<<")
            count = np.minimum(y, U64(63))
            if operator == "<<":
                return make(np.where(shifted, U64(0), a.bits << count), a.kind, a.width)
            if a.kind == "i":
                return make((x.view(np.int64) >> count.view(np.int64)).view(U64), "i", a.width)
            return make(np.where(y >= U64(64), U64(0), a.bits >> count), a.kind, a.width)
        if operator in ("<", ">", "<=", ">=", "==", "!=", "<>"):
            if kind == "i":
                x, y = x.view(np.int64), y.view(np.int64)
            return make(_COMPARE[operator](x, y).astype(U64), "u", 1)
        return make(_INTEGER[operator](x, y), kind, width)

    def real_binary(self, operator: str, a: Value, b: Value) -> Value:
        like = max((v for v in (a, b) if "f" in v.kind), key=lambda v: v.width)
        if operator == "**":
            x = np.ldexp(np.ones(self.frame.lanes), np.clip(b.real(), -1074, 1023).astype(np.int32))
            return Value(bits_of(x, "f", 64), "f", 64)  # the product with it is rounded once
        x, y = a.real(), b.real()
        if operator in _COMPARE:
            return make(_COMPARE[operator](x, y).astype(U64), "u", 1)
        return real(_REAL[operator](x, y), like)

    def on_call(self, name: str, arguments: list[Node]) -> Value:
        values = [self.value(node) for node in arguments]
        if name in self.frame.names:
            return self.frame.names[name](*values)
        if name in _FUNCTIONS:
            return _FUNCTIONS[name](*values)
        if match := re.fullmatch(r"(bf16|[fiu]\d+)_to_(bf16|[fiu]\d+)", name):
            return _conversion(typed(values[0], match[1]), match[2], self.frame.names.get("ROUND_MODE"))
        if name in texts():
            inner = {f"S{i}": value for i, value in enumerate(values)}
            return evaluate(name, inner, self.frame.lanes)["D0"]
        raise NameError(f"{name}()")


def _merge(old: Array, new: Array, low: int, width: int) -> Array:
    field = U64(((1 << width) - 1) << low)
    return (old & ~field) | ((new << U64(low)) & field)


_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "<": np.less, ">": np.greater, "<=": np.less_equal, ">=": np.greater_equal, "==": np.equal,
    "!=": np.not_equal,
    "<>": lambda x, y: (x < y) | (x > y),
}  # fmt: skip
_INTEGER: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.floor_divide, "%": np.mod, "&": np.bitwise_and,
    "|": np.bitwise_or, "^": np.bitwise_xor,
}  # fmt: skip
_REAL: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide,
}  # fmt: skip


def _flag(truth: Array) -> Value:
    return make(truth.astype(U64), "u", 1)


def _signalling(value: Value) -> Array:
    quiet = U64(1 << (value.width - 2 - EXPONENT_BITS[value.kind, value.width]))
    return np.isnan(value.real()) & (value.bits & quiet == 0)


def _keep_signalling(value: Value) -> Value:
    return value


def _exponent(value: Value) -> Value:
    bits = EXPONENT_BITS[value.kind, value.width]
    return make((value.bits >> U64(value.width - 1 - bits)) & U64((1 << bits) - 1), "i", 32)


def _conversion(value: Value, to: str, mode: str | None) -> Value:
    letter, width = re.match(r"(bf|[fiu])(\d+)", to).groups()  # type: ignore[union-attr]
    bits = int(width)
    x = value.real()
    if letter in ("f", "bf"):
        if value.kind not in ("f", "bf") or mode != "ROUND_TOWARD_ZERO":
            return Value(bits_of(x, letter, bits), letter, bits)
        rounded = bits_of(x, letter, bits)
        larger = np.abs(float_of(rounded, letter, bits)) > np.abs(x)
        return make(np.where(larger, rounded - U64(1), rounded), letter, bits)
    low = -(2 ** (bits - 1)) if letter == "i" else 0
    high = 2 ** (bits - 1) - 1 if letter == "i" else 2**bits - 1
    x = np.where(np.isnan(x), 0.0, np.clip(np.trunc(x), low, high))
    return make(x.astype(np.int64) if letter == "i" else x.astype(U64), letter, bits)


def _sign_from_bit(value: Value, width: Value) -> Value:
    n = np.minimum(width.bits, U64(value.width))
    shift = np.where(n == 0, U64(0), U64(64) - n)
    extended = ((value.bits << shift).view(np.int64) >> shift.view(np.int64)).view(U64)
    return make(np.where(n == 0, U64(0), extended), value.kind, value.width)


def _extremum(pick: Callable[[Array, Array], Array]) -> Callable[[Value, Value], Value]:
    def function(a: Value, b: Value) -> Value:
        x, y = a.real(), b.real()
        tie = (x == y) & (x == 0)
        negative = np.where(
            pick(np.float64(0), np.float64(1)) == 1,
            np.signbit(x) & np.signbit(y),
            np.signbit(x) | np.signbit(y),
        )
        result = np.where(
            np.isnan(x) | np.isnan(y), np.nan, np.where(tie, np.where(negative, -0.0, 0.0), pick(x, y))
        )
        return real(result, a)

    return function


def _mantissa(value: Value) -> Value:
    return real(np.frexp(value.real())[0], value)


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "fma": lambda a, b, c: real(fused_multiply_add(a.real(), b.real(), c.real(), a.width), a),
    "trunc": lambda a: real(np.trunc(a.real()), a),
    "floor": lambda a: real(np.floor(a.real()), a),
    "fract": lambda a: real(a.real() - np.floor(a.real()), a),
    "abs": lambda a: make(a.bits & U64((1 << (a.width - 1)) - 1), a.kind, a.width),
    "sign": lambda a: make(a.bits >> U64(a.width - 1), "u", 1),
    "exponent": _exponent,
    "mantissa": _mantissa,
    "isNAN": lambda a: _flag(np.isnan(a.real())),
    "isSignalNAN": lambda a: _flag(_signalling(a)),
    "isQuietNAN": lambda a: _flag(np.isnan(a.real()) & ~_signalling(a)),
    "isZero": lambda a, sign: _flag(
        (a.real() == 0) & (np.signbit(a.real()) == (sign.integer().view(np.int64) < 0))
    ),
    "cvtToQuietNAN": _keep_signalling,
    "isEven": lambda a: _flag(np.fmod(a.real(), 2) == 0),
    "signext": lambda a: make(a.integer(), "i", 64),
    "signext_from_bit": _sign_from_bit,
    "v_maximum_f32": _extremum(np.maximum),
    "v_minimum_f32": _extremum(np.minimum),
}


@cache
def _program(name: str) -> list[Node]:
    # A signalling NaN has to be seen before a conversion quiets it.
    text = re.sub(r"(is\w+NAN)\(64'F\((.*?)\)\)", r"\1(\2)", texts()[name])
    text = re.sub(r"64'F\((\w+\.f\d+)\) == ([+-])0\.0", r"isZero(\1, \g<2>1)", text)
    text = re.sub(r"(S\d\.f64) == ([+-])0\.0", r"isZero(\1, \g<2>1)", text)
    text = text.replace("EXEC.u64[laneId] = D0.u64[laneId]", "D0.u64[laneId]")
    # Addresses and instruction fields come from the caller.
    text = re.sub(r"^\s*(addr|TTBL) = .*?;", "", text, flags=re.M).replace("D.b32", "D0.b32")
    return Parser(text).block()


def evaluate(name: str, registers: dict[str, Any], lanes: int) -> dict[str, Any]:
    """Run an instruction's pseudocode.

    ``registers``: S0, S1, S2, D0, SCC, EXEC, MEM, DATA, ... as `Value`; CARRY is the lane's bit of VCC. The
    result has them as they are afterwards, with MASK for the lane's bit of a lane mask that was written.
    """
    frame = Frame(lanes)
    modes = {
        "ROUND_MODE": "",
        "ROUND_NEAREST_EVEN": "ROUND_NEAREST_EVEN",
        "ROUND_TOWARD_ZERO": "ROUND_TOWARD_ZERO",
    }
    ieee = Value(np.ones(lanes, dtype=U64), "u", 1)
    frame.names = {**modes, **registers, "WAVE_MODE": {"IEEE": ieee}}
    program = _program(name)
    Evaluator(frame).run(program)
    return frame.names

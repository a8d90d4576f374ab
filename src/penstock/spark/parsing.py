"""Parses values into columns: reads JSON by a schema, and rejects messages that do not match it.

Strings are not converted to numbers, nor numbers to strings. A missing field is null, and a field that is not in the
schema is ignored. All columns of a null value are null; it is rejected if one of them is not nullable.

Messages are parsed where they are read, and not by a step of the query, in which a malformed message could not be
distinguished from one that a filter or an aggregation removed.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DecimalException, Inexact, InvalidOperation
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pyarrow as pa

from penstock.errors import InvalidInput

MESSAGE = pa.struct(
    [
        pa.field("queue", pa.string(), nullable=False),
        pa.field("partition", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("headers", pa.string()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("id", pa.string(), nullable=False),
    ]
)

# Types that are made while the program runs, which a type checker cannot follow.
_TYPED: Any = TypedDict
_LIST: Any = list
_DICT: Any = dict

_WHOLE = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_PLAIN: dict[str, tuple[Any, Any]] = {
    "string": (str, pa.string()),
    "boolean": (bool, pa.bool_()),
    # Spark's to_json writes these three as texts.
    "double": (float | Literal["NaN", "Infinity", "-Infinity"], pa.float64()),
    "float": (float | Literal["NaN", "Infinity", "-Infinity"], pa.float32()),
    "timestamp": (datetime, pa.timestamp("us", tz="UTC")),
    "timestamp_ntz": (Annotated[datetime, msgspec.Meta(tz=False)], pa.timestamp("us")),
    "date": (date, pa.date32()),
    "binary": (bytes, pa.binary()),
}
# The digits of a number that an error text quotes: it may have a million.
_MOST_DIGITS = 50


class Misfit(NamedTuple):
    """A message that does not match the schema: its row, and the reason."""

    row: int
    error: str


class Kind(NamedTuple):
    """A type: how it is decoded, how it lies in Arrow, and what to make of a decoded value where they differ."""

    decoded: Any
    arrow: Any
    convert: Callable[[Any], Any] | None = None


class Parser:
    """Reads values against a schema, given as the JSON of Spark's."""

    def __init__(self, schema: dict[str, Any], message_column: str, *, with_value: bool = False) -> None:
        self._message = pa.struct([*MESSAGE, pa.field("value", pa.binary())]) if with_value else MESSAGE
        self._kinds = [kind_of(field["type"], field["name"]) for field in schema["fields"]]
        fields: list[Any] = []
        rename: dict[str, str] = {}
        for index, (field, kind) in enumerate(zip(schema["fields"], self._kinds, strict=True)):
            rename[f"f{index}"] = field["name"]
            if field["nullable"]:
                fields.append((f"f{index}", kind.decoded | None, None))
            else:
                fields.append((f"f{index}", kind.decoded))
        # Those that must be there go first, or the others would have to be there too.
        fields.sort(key=len)
        self._row: Any = msgspec.defstruct("Row", fields, rename=rename, gc=False)
        self._required = [field["name"] for field in schema["fields"] if not field["nullable"]]
        self._decode = msgspec.json.Decoder(self._row).decode
        self._getters = [attrgetter(f"f{index}") for index in range(len(self._kinds))]
        columns = [
            pa.field(field["name"], kind.arrow) for field, kind in zip(schema["fields"], self._kinds, strict=True)
        ]
        self.schema = pa.schema([*columns, pa.field(message_column, self._message, nullable=False)])

    def parse(self, batch: Any) -> tuple[Any, list[Misfit]]:
        """Return a batch of messages as a batch of the schema's columns, and the messages that do not match."""
        rows: list[Any] = []
        good: list[int] = []
        misfits: list[Misfit] = []
        decode = self._decode
        for index, value in enumerate(batch.column("value").to_pylist()):
            try:
                rows.append(decode(value))
                good.append(index)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                misfits.append(Misfit(index, str(error)))
            except TypeError:
                if value is not None:
                    raise
                if self._required:
                    misfits.append(Misfit(index, f"the value is null, and {', '.join(self._required)} must not be"))
                else:
                    rows.append(self._row())
                    good.append(index)
        while True:
            try:
                columns = [self._column(index, rows) for index in range(len(self._kinds))]
                break
            except _Unfit as unfit:
                misfits += [Misfit(good[row], error) for row, error in unfit.rows.items()]
                good = [place for row, place in enumerate(good) if row not in unfit.rows]
                rows = [values for row, values in enumerate(rows) if row not in unfit.rows]
        kept = batch if len(good) == batch.num_rows else batch.take(pa.array(good, pa.int64()))
        fields = list(self._message)
        message = pa.StructArray.from_arrays([kept.column(field.name) for field in fields], fields=fields)
        return pa.record_batch([*columns, message], schema=self.schema), misfits

    def _column(self, index: int, rows: Sequence[Any]) -> Any:
        kind = self._kinds[index]
        values = list(map(self._getters[index], rows))
        try:
            return _array(values, kind)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            # Well-formed, and yet too large for its type: find out which.
            unfit = {}
            for row, value in enumerate(values):
                try:
                    _array([value], kind)
                except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                    unfit[row] = f"{self.schema.field(index).name}: {error}"
            if not unfit:
                raise
            raise _Unfit(unfit) from None


class _Unfit(Exception):
    def __init__(self, rows: dict[int, str]) -> None:
        super().__init__(rows)
        self.rows = rows


def _array(values: list[Any], kind: Kind) -> Any:
    if kind.convert is not None:
        convert = kind.convert
        values = [None if value is None else convert(value) for value in values]
    return pa.array(values, kind.arrow)


def kind_of(spark: Any, where: str) -> Kind:
    """Return how a type of Spark's is read from JSON."""
    if isinstance(spark, dict):
        return _nested(spark, where)
    if spark in _WHOLE:
        bits = _WHOLE[spark]
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        return Kind(Annotated[int, msgspec.Meta(ge=low, le=high)], getattr(pa, f"int{bits}")())
    if spark in ("double", "float"):
        return Kind(*_PLAIN[spark], _number)
    if spark in _PLAIN:
        return Kind(*_PLAIN[spark])
    if isinstance(spark, str) and spark.startswith("decimal"):
        precision, scale = map(int, spark.removeprefix("decimal(").rstrip(")").split(",")) if "(" in spark else (10, 0)
        return Kind(Decimal, pa.decimal128(precision, scale), _decimal(precision, scale))
    raise InvalidInput(f"column {where} is of type {spark}, which is not read from JSON; read it as string")


def _nested(spark: dict[str, Any], where: str) -> Kind:
    match spark["type"]:
        case "array":
            item = kind_of(spark["elementType"], f"{where}[]")
            return Kind(_LIST[item.decoded | None], pa.list_(item.arrow), _each(item.convert))
        case "map":
            item = kind_of(spark["valueType"], f"{where}{{}}")
            if spark["keyType"] != "string":
                raise InvalidInput(f"column {where} is a map of {spark['keyType']}; the keys of JSON are texts")
            return Kind(_DICT[str, item.decoded | None], pa.map_(pa.string(), item.arrow), _pairs(item.convert))
        case "struct":
            kinds = {field["name"]: kind_of(field["type"], f"{where}.{field['name']}") for field in spark["fields"]}
            fields: dict[str, Any] = {name: kind.decoded | None for name, kind in kinds.items()}
            decoded = _TYPED("struct", fields, total=False)
            arrow = pa.struct([pa.field(name, kind.arrow) for name, kind in kinds.items()])
            return Kind(decoded, arrow, _inner({name: kind.convert for name, kind in kinds.items()}))
        case other:
            raise InvalidInput(f"column {where} is of type {other}, which is not read from JSON")


def _number(value: float | str) -> float:
    return float(value) if isinstance(value, str) else value


def _decimal(precision: int, scale: int) -> Callable[[Any], Any]:
    """Return what brings a number to the scale of its column: at an exponent of many digits, Arrow's process dies."""
    context = Context(prec=precision, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact, InvalidOperation])
    unit = Decimal((0, (1,), -scale))

    def change(value: Decimal) -> Decimal:
        try:
            if value.is_finite():
                return value.quantize(unit, context=context)
        except DecimalException:
            pass
        raise ValueError(f"{str(value)[:_MOST_DIGITS]} does not fit decimal({precision},{scale})")

    return change


def _each(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if convert is None:
        return None
    return lambda items: [None if item is None else convert(item) for item in items]


def _pairs(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    change = convert or (lambda item: item)
    return lambda items: [(key, None if item is None else change(item)) for key, item in items.items()]


def _inner(converts: dict[str, Callable[[Any], Any] | None]) -> Callable[[Any], Any] | None:
    changing = {name: convert for name, convert in converts.items() if convert is not None}
    if not changing:
        return None

    def change(items: dict[str, Any]) -> dict[str, Any]:
        return {
            name: changing[name](item) if item is not None and name in changing else item
            for name, item in items.items()
        }

    return change


def parsed(batches: Iterator[Any], parser: Parser, reject: Callable[[Any, list[Misfit]], None]) -> Iterator[Any]:
    """Parse batches; what does not fit is passed to `reject` with its batch."""
    for batch in batches:
        columns, misfits = parser.parse(batch)
        if misfits:
            reject(batch, misfits)
        if columns.num_rows:
            yield columns

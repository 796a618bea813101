"""Damaged parts of a journal: a checksum in each body, and one line that counts and names what cannot be read."""

from __future__ import annotations

import json
import zlib
from array import array
from typing import TYPE_CHECKING, Any

from ratioscope.event import LEVELS, Event
from ratioscope.incidents import log
from ratioscope.record import Record
from ratioscope.state.histogram import N_BUCKETS
from ratioscope.state.length_histogram import N_LENGTHS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from ratioscope.record import RuleReader

try:  # twice as fast, and decoding is most of the time of reading a run; comes with the extra "report"
    import orjson
except ImportError:
    loads: Callable[[bytes], Any] = json.loads
else:
    loads = orjson.loads

DAMAGE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""Errors of decoding something that ratioscope did not write."""
NAMED = 8
"""Rows that one line names."""
_KEY = b',"crc":'
_told: set[str] = set()


def seal(text: str) -> str:
    """Adds the checksum of a JSON object as its last entry; a lone surrogate, which is no text, becomes ``?``."""
    body = text[:-1].encode("utf-8", "replace")
    return f"{str(body, 'utf-8')}{str(_KEY, 'ascii')}{zlib.crc32(body)}}}"


def decode(body: bytes | None, rules: RuleReader | None = None) -> Record | None:
    """Returns the record of a stored body; None if the body is damaged."""
    try:
        data = loads(body)  # type: ignore[arg-type] # of None raises TypeError
        record = Record.from_json(data, rules)
        end = body.rfind(_KEY)  # type: ignore[union-attr]
        if end < 0:  # an earlier version wrote it, without a checksum
            _check(record, data["state"])
            return record
        return record if data["crc"] == zlib.crc32(body[:end]) else None  # type: ignore[index]
    except DAMAGE:
        return None


def decode_event(body: bytes | None) -> Event | None:
    """Returns the event of a stored body; None if the body is damaged."""
    try:
        event = Event.from_json(loads(body))  # type: ignore[arg-type] # of None raises TypeError
        _ = event.step + event.time + event.warnings + event.errors
        _ = "".join((event.name, event.status, event.level, event.confidence, event.text))
    except DAMAGE:
        return None
    return event if event.level in LEVELS else None


def _check(record: Record, state: Mapping[str, Any]) -> None:
    """Raises one of ``DAMAGE`` if a part of a record that is decoded at first use cannot be; decoding all is slow."""
    for part in ("maxima", "sums", "counts"):
        array("d", map(float, state[part].values()))
    for part, size in (("histograms", N_BUCKETS), ("lengths", N_LENGTHS)):
        for sparse in state.get(part, {}).values():
            if not _is_sparse(sparse, size):
                raise ValueError(part)
    top = state.get("top", {})
    for table in (top.get("tokens", {}), top.get("rows", {})):
        if {*map(len, table.get("rows", ()))} - {len(table.get("columns", ()))}:
            raise ValueError(table)
    sum((*record.scalars.values(), *record.logs.values(), *record.health.values(), *top.get("log_ratios", ())))
    _ = record.step + record.time, record.split.encode()


def _is_sparse(sparse: Mapping[str, Any], size: int) -> bool:
    """Returns whether these are counts of buckets that exist."""
    if "buckets" not in sparse:  # as the first journals had them
        return all(0 <= int(bucket) < size for bucket in sparse)
    buckets, counts = array("q", sparse["buckets"]), array("q", sparse["counts"])
    return len(buckets) == len(counts) and (not buckets or (min(buckets) >= 0 and max(buckets) < size))


def tell(path: Path, damaged: Iterable[int], what: str = "record") -> None:
    """Logs one line that counts and names damaged rows of a journal, once for each set of them."""
    ids = sorted(damaged)
    if ids:
        names = ", ".join(map(str, ids[:NAMED])) + (", ..." if len(ids) > NAMED else "")
        _once(f"{path}: {len(ids)} {what}(s) cannot be read and are left out: id {names}")


def tell_lost(path: Path, error: Exception, table: str) -> None:
    """Logs one line on rows of a table that cannot be reached, once for each error."""
    _once(f"{path}: a part of table {table} cannot be read ({error}); its rows there are left out")


def _once(line: str) -> None:
    if line not in _told:
        _told.add(line)
        log.warning("%s", line)

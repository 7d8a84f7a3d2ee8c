"""Which changes of a status operators are notified of, and in which words. Pure.

/health, /metrics and the alerts of Prometheus read the same status. A notification has names,
counts, and the reasons that /health gives to anyone: no row data, no places, no keys.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any, Literal, NamedTuple

from penstock.model.version import DOCS
from penstock.ops.status import Status
from penstock.ops.thresholds import MessageFormat, NotificationKind

# Seconds between two notifications of a kind; what comes meanwhile is in the next one.
BETWEEN = 60.0
# Seconds without a stored chunk while a table is read.
_STUCK_AFTER = 600.0
# Seconds; what is unhealthy has lasted already, unless it stands still or is stopped.
_UNHEALTHY_AFTER = 10.0
_LINES, _LONGEST = 10, 500  # of a notification, and characters of each

Level = Literal["error", "warning", "ok"]
# A level as Slack and Teams show it.
_SIGNS: Mapping[Level, tuple[str, str]] = {
    "error": (":red_circle:", "attention"),
    "warning": (":large_yellow_circle:", "warning"),
    "ok": (":large_green_circle:", "good"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """`level` ok: what was reported is over. `see`: a page of the documentation. `host`: of the
    process. `at`: ISO 8601."""

    kind: NotificationKind | Literal["test"]
    level: Level
    pipeline: str
    title: str
    lines: Sequence[str]
    see: str
    host: str
    at: str


class _Kind(NamedTuple):
    """`over`: the title once it is over; "" for events. Levels and pages are as of the alerts."""

    level: Level
    title: str
    over: str
    see: str


_KINDS: Mapping[NotificationKind, _Kind] = {
    "health": _Kind("error", "health is {}", "health is {}", "reference/operations/#health"),
    "gap": _Kind("error", "changes were lost", "", "how-to/recover-from-a-gap/"),
    "dead-letter": _Kind("warning", "changes were set aside", "", "how-to/dead-letters/"),
    "at-risk": _Kind(
        "error", "changes may soon be lost", "changes are not at risk any more",
        "reference/operations/#the-window-of-history",
    ),
    "snapshot-stuck": _Kind(
        "warning", "a snapshot stores nothing", "no snapshot is stuck any more",
        "how-to/snapshots/#what-ends-a-snapshot-early",
    ),
}  # fmt: skip

# By name a mark, another one of which is news, and what is said of it.
_Facts = Mapping[str, tuple[Any, str]]
_Marks = Mapping[str, Any]


class StatusChanges:
    """Of one pipeline. `settled`: seconds after which degraded counts. Gaps from before `began`
    (Unix time) are no news."""

    def __init__(self, *, host: str, settled: float, began: float) -> None:
        self._host, self._settled, self._began = host, settled, _iso(began)
        # Of a kind the marks at its last notification and now, how often they changed since, and
        # when the next may be made.
        self._news: dict[NotificationKind, tuple[_Marks, _Marks, int, float]] = {}
        self._health, self._bad_at = "ok", inf
        self._gaps: dict[str, tuple[Any, str]] = {}
        self._stored: dict[str, tuple[int, float]] = {}  # chunks of a backend, and since when

    def notifications(self, status: Status, now: float, at: float) -> Iterator[Notification]:
        """What is news, of each kind once in BETWEEN seconds at most; `now` is monotonic seconds,
        `at` Unix time. Ask about once a second."""
        found: Mapping[NotificationKind, _Facts] = {
            "health": self._health_of(status, now),
            "gap": self._gaps_of(status),
            "dead-letter": dict(_letters(status)),
            "at-risk": {
                each.name: (True, f"backend {each.name}: {each.at_risk}")
                for each in status.backends if each.at_risk
            },
            "snapshot-stuck": dict(self._stuck(status, now)),
        }  # fmt: skip
        for kind, facts in found.items():
            told, before, changes, next_at = self._news.get(kind, ({}, {}, 0, 0.0))
            marks = {name: mark for name, (mark, _) in facts.items()}
            changes += marks != before
            if changes and now >= next_at:
                about = _KINDS[kind]
                lines = [
                    line for name, (mark, text) in facts.items()
                    if about.over or told.get(name) != mark for line in text.splitlines()
                ]  # fmt: skip
                if about.over and changes > 1:
                    lines.insert(0, f"this changed {changes} times since the last notification")
                is_mild = kind == "health" and self._health == "degraded"
                yield Notification(
                    kind=kind, pipeline=status.name, host=self._host, at=_iso(at),
                    level="ok" if not facts else "warning" if is_mild else about.level,
                    title=(about.title if facts else about.over).format(self._health),
                    lines=_short(lines), see=f"{DOCS}/{about.see}",
                )  # fmt: skip
                told, changes, next_at = marks, 0, now + BETWEEN
            self._news[kind] = told, marks, changes, next_at

    def _health_of(self, status: Status, now: float) -> _Facts:
        """Bad health counts once it has lasted: each start is degraded for some seconds, and each
        stop unhealthy."""
        health = status.health
        is_bad = health in ("degraded", "unhealthy")
        begun = all(each.begun and each.age_seconds is not None for each in status.backends)
        if not is_bad or (health == "degraded" and not begun):
            self._bad_at = inf
        self._bad_at = min(self._bad_at, now)
        lasts = self._settled if health == "degraded" else min(self._settled, _UNHEALTHY_AFTER)
        if not is_bad or now - self._bad_at >= lasts:
            self._health = health
        if self._health in ("ok", "standby"):
            return {}
        said = zip(status.reasons, status.remedies, strict=True)
        lines = [f"{reason}. {remedy['do']} {remedy['see']}" for reason, remedy in said]
        return {"": (self._health, "\n".join(lines))}

    def _gaps_of(self, status: Status) -> _Facts:
        """The newest of each partition and cause; also of a backend that has left."""
        for each in status.backends:
            for partition, row in each.gaps.items():
                for gap in row.gaps:
                    if gap["at"] >= self._began:
                        name = f"backend {each.name}: partition {partition}: {gap['cause']}"
                        self._gaps[name] = gap["at"], name
        return dict(self._gaps)

    def _stuck(self, status: Status, now: float) -> Iterator[tuple[str, tuple[Any, str]]]:
        for each in status.backends:
            known = each.snapshots
            tables = [run["table"] for run in known.current if run["bytes_per_second"] is not None]
            chunks, since = self._stored.get(each.name, (-1, now))
            if not tables or chunks != known.chunks:
                self._stored[each.name] = known.chunks, now
            elif now - since >= _STUCK_AFTER:
                text = f"nothing was stored of {', '.join(tables)} for {_STUCK_AFTER / 60:.0f} min"
                yield each.name, (True, f"backend {each.name}: {text}")


def _letters(status: Status) -> Iterator[tuple[str, tuple[Any, str]]]:
    counts = {
        f"sink {each.name}: {reason}": count
        for each in status.sinks for reason, count in each.dead_letters.items()
    } | {
        f"backend {each.name}: its observer failed": each.set_aside
        for each in status.backends if each.set_aside
    }  # fmt: skip
    for name, count in counts.items():
        yield name, (count, f"{name}: {count:,} since the start")


def _short(lines: Sequence[str]) -> Sequence[str]:
    found = [line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…" for line in lines[:_LINES]]
    return [*found, f"and {len(lines) - _LINES} more"] if len(lines) > _LINES else found


def _iso(at: float) -> str:
    """As gaps are recorded, so that both compare as text."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def sample(pipeline: str, *, host: str, at: float) -> Notification:
    return Notification(
        kind="test", level="ok", pipeline=pipeline, title="a test", host=host, at=_iso(at),
        lines=["notifications come here"], see=f"{DOCS}/how-to/deploy/#alerts-without-prometheus",
    )  # fmt: skip


def message(news: Notification, form: MessageFormat) -> Mapping[str, Any]:
    """The body that is posted."""
    (sign, color), title = _SIGNS[news.level], f"{news.pipeline}: {news.title}"
    lines = [*news.lines, f"{news.host}, {news.at}"]
    if form == "slack":
        return {"text": "\n".join([f"{sign} *{title}*", *map(_escaped, lines), f"<{news.see}>"])}
    if form == "teams":
        head = {"text": title, "weight": "Bolder", "color": color}
        card = {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            # A TextBlock would read Markdown in the text.
            "body": [
                {"type": "RichTextBlock", "inlines": [{"type": "TextRun", **run}]}
                for run in (head, *({"text": line} for line in lines))
            ],
            "actions": [{"type": "Action.OpenUrl", "title": "What to do", "url": news.see}],
        }
        kind = "application/vnd.microsoft.card.adaptive"
        attachment = {"contentType": kind, "contentUrl": None, "content": card}
        return {"type": "message", "attachments": [attachment]}
    return asdict(news)


def _escaped(text: str) -> str:
    """As Slack wants it: no text becomes a link or a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

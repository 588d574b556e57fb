"""A record whose every free text tries to leave its place: markup, ends of scripts and texts, invisible marks."""

from __future__ import annotations

from typing import Any

from levelfield.specs.record import DeviceTrace, RankPeaks, RankTrace, RunRecord, RunTraces, StoredResult
from seeded_nights import SeededNights

IMAGE = "<img src=x onerror=alert(1)>"
ENDS = "</script><script>alert(1)</script>"
QUOTES = "'\"`\\');alert(1);//{{7*7}}${alert(1)}"
TURNED = "\u202egnp.exe\u2028\u200b\x00\x1b[31m"
LINK = "javascript:alert(1)"
ALL = (IMAGE, ENDS, QUOTES, TURNED, LINK)


def hostile_record(**more: Any) -> RunRecord:
    """A record that the schema accepts."""
    calm = next(SeededNights(series=1, nights=1, faults=False).records())
    series = calm.series.model_copy(update={"case": IMAGE, "framework": ENDS, "chip": QUOTES, "vendor": TURNED})
    conditions = calm.conditions.model_copy(
        update={"software": {"__proto__": "polluted", IMAGE: ENDS, "constructor": QUOTES}, "kernel": TURNED, "os": LINK}
    )
    subject = calm.subject.model_copy(update={"commit": IMAGE, "framework_version": ENDS})
    result = {
        **calm.stored_result.content,
        "warnings": list(ALL),
        "deviations": list(ALL),
        "inherited": {f"LD_{IMAGE}": ENDS, "__proto__": "polluted"},
        "alignment": {
            "verdict": "aligned",
            "reason": ENDS,
            "reference": QUOTES,
            "layers": [{"name": IMAGE, "passed": True, "value": 1e-7, "limit": 1e-6, "detail": ENDS}],
        },
    }
    update = {
        "run_id": f"{IMAGE}/../..//{QUOTES}",
        "began": "2026-11-02T01:00:00Z",
        "night": "2026-11-02",
        "series": series,
        "conditions": conditions,
        "subject": subject,
        "node": IMAGE,
        "reason": TURNED,
        "evidence_reason": ENDS,
        "verdict": IMAGE,
        "telemetry": {IMAGE: 1.0, "__proto__": 2.0},
        "traces": RunTraces(
            seconds=1e300,
            parts=32,
            ranks=10**9,
            device_traces=(
                DeviceTrace(device=IMAGE[:40], values={"power_watts": (None, 1e308), "utilisation": ()}),
                DeviceTrace(device="__proto__", values={}),
            ),
            rank_traces=(
                RankTrace(rank=10**15, step_microseconds=()),
                RankTrace(rank=0, step_microseconds=(1, 10**24)),
            ),
            rank_peaks=(RankPeaks(rank=0), RankPeaks(rank=10**15, process=-1)),
        ),
        "stored_result": StoredResult(result),
    }
    return calm.model_copy(update=update | more)

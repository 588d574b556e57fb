"""Which fields of two runs decide whether their figures may be set in a ratio. The page of two runs reads these lists.

A field is named as in the data of a run: `series.work` is a field of its series, `conditions.kernel` of what surrounds
it, `subject.commit` of the build.
"""

from __future__ import annotations

# No ratio is printed where one of these differs: the two runs did not do the same work, or do not count it alike.
MUST_EQUAL = ("series.work", "series.corpus", "series.scale", "series.device_is", "window", "subject.formulas")
# What a comparison is made for.
AS_ASKED = (
    "series.vendor",
    "series.chip",
    "series.framework",
    "series.nodes",
    "series.devices",
    "series.precision",
    "series.layout",
    "series.micro_batch",
    "series.accumulation",
    "series.virtual_pipeline",
    "series.recompute",
    "series.compile",
    "series.attention",
    "series.threads",
    "series.runtime",
)
# Parts of which every field calls for caution where it differs.
CAUTION = ("conditions", "subject", "node")

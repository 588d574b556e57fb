"""Which fields of two runs decide whether their figures may be set in a ratio. The page of two runs reads these lists.

The rules are those of compare/comparability.py, for one run a side. A field is named as in the data of a run:
`series.work` is a field of its series, `conditions.kernel` of what surrounds it, `subject.commit` of the build.
"""

from __future__ import annotations

from levelfield.specs.vendor import HOST_SHARE

# No ratio is printed where one of these differs: the two runs did not do the same work, or do not count it alike.
# `device` is what a device is; `formula` has a field for each formula that both runs have.
MUST_EQUAL = ("series.work", "series.corpus", "series.scale", "series.precision", "window", "device", "formula")
# What a comparison is made for.
AS_ASKED = (
    "series.vendor",
    "series.chip",
    "series.framework",
    "series.nodes",
    "series.devices",
    "series.layout",
    "series.micro_batch",
    "series.accumulation",
    "series.virtual_pipeline",
    "series.recompute",
    "series.compile",
    "series.attention",
    "series.threads",
    "series.runtime",
    "series.further_version",
)
# What every framework has its own of: between two frameworks it is no reason for caution.
OF_A_FRAMEWORK = ("subject.framework_version", "subject.environment", "subject.packages", "subject.implementation")
# Parts of which every field calls for caution where it differs.
CAUTION = ("conditions", "subject", "node", "training", "date", "series.case")
DAYS_APART = 30
RULES = {
    "must": MUST_EQUAL,
    "asked": AS_ASKED,
    "of_a_framework": OF_A_FRAMEWORK,
    "caution": CAUTION,
    "days": DAYS_APART,
    "host_share": HOST_SHARE,
}

"""A peak that is not measured: what FAKE_PEAK says, in the form of a real probe's last line."""

import os
import sys

text = os.environ.get("FAKE_PEAK", '{"fp32": {"tflops": 2.0}}')
print("some words before the answer")
print(text)
sys.exit(1 if text == "broken" else 0)

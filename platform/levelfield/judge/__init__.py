"""One run directory into a Result: validity, figures by `measure/`, and the verdict on its training."""

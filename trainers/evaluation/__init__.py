"""From merged sketches to what people look at: calibration, learning curves, comparison of two models.

Numbers only; pictures belong to `elastrec.platform.history`, counting to `elastrec.platform.data.metrics.binary`.
"""

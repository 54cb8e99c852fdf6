"""All metrics of a job's run in MLflow, with their units. No other module defines such names.

MLflow groups charts in sections by the text before the last slash, and sorts sections and charts by name. Therefore,
`curves/` is the first section of a run's page: AUC, cost, loss, normalised entropy and speed. Values that do not change
while a job runs are parameters or tags. Measurements of single pods are aggregated over the pods of a role, so a run
with a hundred workers has as many metrics as a run with two.

Series of a running job have the samples trained so far as their step and the time of measurement as their timestamp,
so that MLflow's charts show them over samples (axis "Step") or over elapsed time (axis "Relative time").
"""

from __future__ import annotations

import re

import xxhash

AUC = "curves/auc"
CORE_HOURS = "curves/core_hours"
COST = "curves/cost"
LOSS = "curves/loss"
NORMALIZED_ENTROPY = "curves/normalized_entropy"
SAMPLES_PER_SECOND = "curves/samples_per_second"
HEAD = "curves/heads/{head}/{figure}"
NAMED_LOSS = "curves/losses/{name}"

EVALUATION_AUC = "evaluation/auc"
EVALUATION_NORMALIZED_ENTROPY = "evaluation/normalized_entropy"
EVALUATION_LOG_LOSS = "evaluation/log_loss"
EVALUATION_CALIBRATION = "evaluation/calibration"
EVALUATION_HEAD = "evaluation/heads/{head}/{figure}"
CHAMPION_FIGURE = "evaluation/champion_{figure}"
GAIN = "evaluation/{figure}_gain"

CALIBRATION_PREDICTED = "evaluation/calibration_curve/predicted"
CALIBRATION_OBSERVED = "evaluation/calibration_curve/observed"
CALIBRATION_ROWS = "evaluation/calibration_curve/rows"
CALIBRATION_HEAD = "evaluation/heads/{head}/calibration_curve/{part}"

SECONDS = "job/seconds"
SAMPLES_TRAINED = "job/samples_trained"
SAMPLES_OF_START = "job/samples_of_start"
SAMPLES_REPEATED = "job/samples_repeated"
MEAN_SAMPLES_PER_SECOND = "job/samples_per_second"
SAMPLES_PER_CORE_SECOND = "job/samples_per_core_second"
GIBIBYTE_HOURS = "job/gibibyte_hours"
GOODPUT = "job/goodput"
RESTARTS = "job/restarts"
ROLLBACKS = "job/rollbacks"
MEMORY_KILLS = "job/memory_kills"
CHECKPOINT_AGE_SECONDS = "job/checkpoint_age_seconds"
MEMORY_COPY_AGE_SECONDS = "job/memory_copy_age_seconds"

WORKERS_RUNNING = "pods/workers"
SERVERS_RUNNING = "pods/parameter_servers"
WORKER_START_SECONDS = "pods/worker_start_seconds"
SERVER_START_SECONDS = "pods/parameter_server_start_seconds"
WORKER_START_CORE_SECONDS = "pods/worker_start_core_seconds"
SERVER_START_CORE_SECONDS = "pods/parameter_server_start_core_seconds"
MIGRATION_COPY_SECONDS = "pods/migration_copy_seconds"
MIGRATION_PAUSE_SECONDS = "pods/migration_pause_seconds"

SCALING_WORKERS = "scaling/workers"
SCALING_PREDICTED = "scaling/predicted_samples_per_second"
SCALING_GAIN = "scaling/predicted_gain"
SCALING_CHANGED = "scaling/changed"
SCALING_COEFFICIENT = "scaling/coefficients/{name}"
SCALING_DENSE_BYTES = "scaling/dense_bytes"
SCALING_LAST_PREDICTED_GAIN = "scaling/last_plan_predicted_gain"
SCALING_LAST_MEASURED_GAIN = "scaling/last_plan_measured_gain"

STEP_SECONDS = "step/seconds"
SLOWEST_STEP_SECONDS = "step/slowest_worker_seconds"
STEP_PART_SECONDS = "step/{part}_seconds"

MEMORY_BYTES = "system/{role}_memory_bytes"
CPU_CORES = "system/{role}_cpu_cores"

TIME_SECONDS = "time/{part}_seconds"

TRAFFIC_PULLED = "traffic/pulled_bytes_per_sample"
TRAFFIC_PUSHED = "traffic/pushed_bytes_per_sample"
TRAFFIC_READ = "traffic/read_bytes_per_sample"
TRAFFIC_READ_PLAIN = "traffic/read_plain_bytes_per_sample"

DATA_ROWS = "data/rows"
DATA_SESSIONS = "data/sessions"
DATA_SAMPLES_PER_SESSION = "data/samples_per_session"
DATA_GROUPS = "data/groups"
DATA_BEFORE = "data/{what}/before"
DATA_AFTER = "data/{what}/after"
DATA_RATIO = "data/{what}/ratio"
DATA_FACTOR = "data/factor/{feature}"
DATA_FACTOR_PREDICTED = "data/predicted_factor/{feature}"

DESCRIPTIONS = {
    AUC: "area under the ROC curve in the last window, measured before the update; for the model's first output",
    CORE_HOURS: "granted core-hours of all pods so far, also of those before the job was resumed, without those "
    "between the last record and the kill of its master; the last value is the cost of the job",
    COST: "cost of the granted cores and memory of all pods so far, at `spec.history.prices` and in their currency; "
    "absent without prices",
    LOSS: "mean of the trained loss in the last window, before the update; for one binary label the log loss in nats",
    NORMALIZED_ENTROPY: "log loss in the last window, divided by the log loss of always predicting its click rate",
    SAMPLES_PER_SECOND: "samples trained per second in the last window, all workers",
    HEAD: "for one of several outputs, in the last window: auc, normalized_entropy, mean_squared_error, "
    "normalized_error (divided by the error of always predicting the mean label) or calibration (mean prediction "
    "divided by mean label)",
    NAMED_LOSS: "like `curves/loss`, for one of several losses of the model",
    EVALUATION_AUC: "area under the ROC curve on the evaluation rows, which were never trained on",
    EVALUATION_NORMALIZED_ENTROPY: "normalised entropy on the evaluation rows",
    EVALUATION_LOG_LOSS: "mean log loss on the evaluation rows, nats",
    EVALUATION_CALIBRATION: "sum of the predictions divided by the number of clicks in the evaluation rows; 1 is best",
    EVALUATION_HEAD: "these figures of one of several outputs on the evaluation rows",
    CHAMPION_FIGURE: "auc, normalized_entropy or normalized_error of the champion on the same evaluation rows",
    GAIN: "how much better this model is than the champion on the same rows; below 0: worse",
    CALIBRATION_PREDICTED: "mean prediction of one group of evaluation rows; step = group, by increasing prediction",
    CALIBRATION_OBSERVED: "observed click rate of that group",
    CALIBRATION_ROWS: "rows of that group",
    CALIBRATION_HEAD: "predicted, observed and rows, for other outputs than the first",
    SECONDS: "seconds from the start to the end of the job, without the time until it was resumed; absent if the time "
    "of its earlier masters is unknown",
    SAMPLES_TRAINED: "samples whose gradients the job has applied, including repeats",
    SAMPLES_OF_START: "samples of another job, in the record at whose positions this one began. They count in the "
    "steps of all series, not in `job/samples_trained`; absent if there is no such record",
    SAMPLES_REPEATED: "samples trained more than once, after pods were lost",
    MEAN_SAMPLES_PER_SECOND: "samples that the job has trained, including repeats, over `job/seconds`",
    SAMPLES_PER_CORE_SECOND: "the same samples divided by the core-seconds of all pods; both without earlier masters "
    "that have left no costs",
    GIBIBYTE_HOURS: "granted GiB-hours of memory of all pods",
    GOODPUT: "share of `job/seconds` in which rows were trained that are in the model, 0 to 1; absent with it",
    RESTARTS: "pods that were restarted or replaced",
    ROLLBACKS: "rollbacks to a checkpoint record",
    MEMORY_KILLS: "pods that were killed because they used more memory than their limit",
    CHECKPOINT_AGE_SECONDS: "age of the state in the newest complete record, in seconds",
    MEMORY_COPY_AGE_SECONDS: "age of the newest state that all servers have in the memory of their nodes, in seconds",
    WORKERS_RUNNING: "workers that are up",
    SERVERS_RUNNING: "parameter servers that are up",
    WORKER_START_SECONDS: "median seconds from asking for a worker to its first step",
    SERVER_START_SECONDS: "median seconds from asking for a parameter server until it has registered",
    WORKER_START_CORE_SECONDS: "median core-seconds of a worker until the heartbeat that reports its first step",
    SERVER_START_CORE_SECONDS: "median core-seconds of a parameter server until its first heartbeat",
    MIGRATION_COPY_SECONDS: "median seconds in which rows were copied to their next parameter servers, while the job "
    "trained",
    MIGRATION_PAUSE_SECONDS: "median seconds of a hand-over of rows from one parameter server to another",
    SCALING_WORKERS: "workers after the decision of the last scaling round",
    SCALING_PREDICTED: "samples per second that the throughput model predicts after that decision",
    SCALING_GAIN: "predicted gain of that decision in samples per second, after subtracting the overhead",
    SCALING_CHANGED: "1 if the round changed the job, otherwise 0",
    SCALING_COEFFICIENT: "coefficients of the job's throughput model: seconds of a step per unit of gradient, update, "
    "synchronise and embedding, and the constant; the overlap has no unit. Models of later jobs start with them",
    SCALING_DENSE_BYTES: "bytes of the dense parameters of the job, for which that model is fitted",
    SCALING_LAST_PREDICTED_GAIN: "predicted gain of the last executed plan, in samples per second",
    SCALING_LAST_MEASURED_GAIN: "measured gain of that plan, in samples per second",
    STEP_SECONDS: "duration of a step in the last window, mean over the workers",
    SLOWEST_STEP_SECONDS: "the same for the slowest worker; a value far above `step/seconds` means a straggler",
    STEP_PART_SECONDS: "seconds of a step that a worker spent in wait, pull, compute or push, mean over the workers",
    MEMORY_BYTES: "bytes in use by the pod with the most memory in use, by role",
    CPU_CORES: "cores in use by all pods of a role since the last measurement",
    TIME_SECONDS: "part of `job/seconds`: pending, starting, training, waiting_for_data, checkpointing, recovering, "
    "redoing_lost_work, evaluating, idle, without_master; a part that took no time is absent, and all without "
    "`job/seconds`",
    TRAFFIC_PULLED: "bytes that workers pulled from the servers, per trained sample",
    TRAFFIC_PUSHED: "bytes of gradients that workers pushed, per trained sample",
    TRAFFIC_READ: "bytes between reader and worker, per trained sample",
    TRAFFIC_READ_PLAIN: "what `traffic/read_bytes_per_sample` would be without deduplication",
    DATA_ROWS: "rows in the sample of an inspected log",
    DATA_SESSIONS: "sessions in that sample",
    DATA_SAMPLES_PER_SESSION: "rows per session of that sample",
    DATA_GROUPS: "groups of features that are worth deduplicating",
    DATA_BEFORE: "bytes stored or sent, or ids pooled, in the order of the log and without deduplication",
    DATA_AFTER: "the same clustered by session and deduplicated",
    DATA_RATIO: "factor between the two",
    DATA_FACTOR: "dedupe factor of a feature in clustered batches: ids before deduplication per id after it",
    DATA_FACTOR_PREDICTED: "the same, as predicted by the model of sessions",
}
"""Meaning and unit by name; `{}` marks variable parts."""

# MLflow allows letters and digits of any script.
_UNSAFE = re.compile(r"[^\w\-. :]")
_LONGEST_PART = 200
"""Characters; MLflow allows 250 for a whole name."""


def named(template: str, **parts: str) -> str:
    """A name with its variable parts filled in, such that MLflow accepts it.

    Characters that MLflow refuses become `_`, as does a part that names a folder (`.`, `..`) or nothing. A part of more
    than 200 characters ends with the hash of the whole part instead of its last characters.
    """
    return template.format(**{key: _accepted(value) for key, value in parts.items()})


def _accepted(part: str) -> str:
    if part in ("", ".", ".."):
        return "_" * max(1, len(part))
    safe = _UNSAFE.sub("_", part)
    if len(safe) <= _LONGEST_PART:
        return safe
    digest = xxhash.xxh3_64_hexdigest(part.encode())
    return f"{safe[: _LONGEST_PART - len(digest) - 1]}-{digest}"

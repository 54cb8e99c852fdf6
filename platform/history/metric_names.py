"""Every metric that a job's run has in MLflow, with its unit. The one place where these names are written.

Series of a running job have the samples trained so far as their step and the time of measurement as their timestamp,
so that MLflow's charts show them over samples (axis "Step") or over elapsed time (axis "Relative time"). `{pod}` is a
pod's place in its job (`worker-0`), which is MLflow's node id too.
"""

from __future__ import annotations

import re

SAMPLES_PER_SECOND = "samples_per_second"
LOSS = "loss"
AUC = "auc"
NORMALIZED_ENTROPY = "normalized_entropy"
NAMED_LOSS = "loss/{name}"
HEAD = "heads/{head}/{figure}"
SAMPLES_TRAINED = "samples_trained"
ELAPSED_SECONDS = "elapsed_seconds"
WORKERS_RUNNING = "workers_running"
SERVERS_RUNNING = "parameter_servers_running"

BATCH_SECONDS = "batch_seconds/{pod}"
PHASE_SECONDS = "phase_seconds/{pod}/{part}"
MEMORY_BYTES = "system/{pod}/memory_bytes"
CPU_CORES = "system/{pod}/cpu_cores"

EVALUATION_AUC = "evaluation/auc"
EVALUATION_NORMALIZED_ENTROPY = "evaluation/normalized_entropy"
EVALUATION_HEAD = "evaluation/heads/{head}/{figure}"
EVALUATION_LOG_LOSS = "evaluation/log_loss"
EVALUATION_SAMPLES = "evaluation/samples"
CHAMPION_AUC = "evaluation/champion_auc"
CHAMPION_NORMALIZED_ENTROPY = "evaluation/champion_normalized_entropy"
CHAMPION_NORMALIZED_ERROR = "evaluation/champion_normalized_error"

CALIBRATION_PREDICTED = "calibration/predicted"
CALIBRATION_OBSERVED = "calibration/observed"
CALIBRATION_ROWS = "calibration/rows"
CALIBRATION_HEAD = "calibration/heads/{head}/{part}"

TOTAL_SECONDS = "total/seconds"
TOTAL_SAMPLES = "total/samples"
TOTAL_SAMPLES_TRAINED = "total/samples_trained"
TOTAL_SAMPLES_PER_SECOND = "total/samples_per_second"
TOTAL_SHARDS = "total/shards"
TOTAL_SHARDS_DONE = "total/shards_done"
TOTAL_RESTARTS = "total/restarts"
TOTAL_ROLLBACKS = "total/rollbacks"
TOTAL = "total/{name}"

COST_CORE_SECONDS = "cost/core_seconds"
COST_CORE_HOURS = "cost/core_hours"
COST_BYTE_SECONDS = "cost/byte_seconds"
COST_GIBIBYTE_HOURS = "cost/gibibyte_hours"
COST_PRICE = "cost/price"
COST_ROLE_CORE_SECONDS = "cost/{role}/core_seconds"
COST_ROLE_BYTE_SECONDS = "cost/{role}/byte_seconds"
COST_SAMPLES_PER_CORE_SECOND = "cost/samples_per_core_second"

WORKER_START_SECONDS = "overhead/worker_start_seconds"
SERVER_START_SECONDS = "overhead/parameter_server_start_seconds"

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

SCALING_WORKERS = "scaling/workers"
SCALING_PREDICTED = "scaling/predicted_samples_per_second"
SCALING_GAIN = "scaling/predicted_gain"
SCALING_CHANGED = "scaling/changed"
SCALING_LAST_PREDICTED_GAIN = "scaling/last_plan_predicted_gain"
SCALING_LAST_MEASURED_GAIN = "scaling/last_plan_measured_gain"

CONFIGURATION = "cfg.{name}"

DESCRIPTIONS = {
    SAMPLES_PER_SECOND: "samples trained per second in the last window, all workers",
    LOSS: "mean of the trained loss of the last window, before the update; of one binary label the log loss, nats",
    NAMED_LOSS: "mean of one of several losses that the model names, as loss",
    HEAD: "auc, normalized_entropy, mean_squared_error, normalized_error (over that of always predicting the mean "
    "label) or calibration (mean prediction over mean label) of one of several outputs, in the last window",
    AUC: "area under the ROC curve of the last window, measured before the update; of the model's first output",
    NORMALIZED_ENTROPY: "log loss of the last window over that of always predicting its click rate",
    SAMPLES_TRAINED: "samples whose gradients were applied, repeats counted",
    ELAPSED_SECONDS: "seconds since the job began",
    WORKERS_RUNNING: "workers that are up",
    SERVERS_RUNNING: "parameter servers that are up",
    BATCH_SECONDS: "mean seconds of a worker's step in the last window",
    PHASE_SECONDS: "mean seconds per step that a worker spent in wait, pull, compute or push",
    MEMORY_BYTES: "bytes in use by a pod",
    CPU_CORES: "cores in use by a pod since the last measurement",
    EVALUATION_AUC: "area under the ROC curve on the evaluation rows, which were never trained on",
    EVALUATION_NORMALIZED_ENTROPY: "normalised entropy on the evaluation rows",
    EVALUATION_HEAD: "these figures of one of several outputs, or log_loss, on the evaluation rows",
    EVALUATION_LOG_LOSS: "mean log loss on the evaluation rows, nats",
    EVALUATION_SAMPLES: "evaluation rows",
    CHAMPION_AUC: "the champion's AUC on the same evaluation rows",
    CHAMPION_NORMALIZED_ENTROPY: "the champion's normalised entropy on the same evaluation rows",
    CHAMPION_NORMALIZED_ERROR: "the champion's normalised error on the same evaluation rows",
    CALIBRATION_PREDICTED: "mean prediction of one group of evaluation rows; step = group, by rising prediction",
    CALIBRATION_OBSERVED: "observed click rate of that group",
    CALIBRATION_ROWS: "rows of that group",
    CALIBRATION_HEAD: "predicted, observed and rows of another output than the first",
    TOTAL_SECONDS: "seconds from the job's begin to its end",
    TOTAL_SAMPLES: "samples that the training shards hold, all epochs",
    TOTAL_SAMPLES_TRAINED: "samples whose gradients were applied; above total/samples by the repeats",
    TOTAL_SAMPLES_PER_SECOND: "total/samples_trained over total/seconds",
    TOTAL_SHARDS: "training shards, all epochs",
    TOTAL_SHARDS_DONE: "training shards done",
    TOTAL_RESTARTS: "pods that were restarted or replaced",
    TOTAL_ROLLBACKS: "returns to a checkpoint record",
    TOTAL: "another total that the master counts (see its `totals`): repeats, losses, records, seconds per phase",
    COST_CORE_SECONDS: "granted cores times seconds, all pods",
    COST_CORE_HOURS: "cost/core_seconds in core-hours",
    COST_BYTE_SECONDS: "granted bytes of memory times seconds, all pods",
    COST_GIBIBYTE_HOURS: "cost/byte_seconds in GiB-hours",
    COST_PRICE: "core-hours and GiB-hours at the given prices; absent without prices",
    COST_ROLE_CORE_SECONDS: "cost/core_seconds of one role",
    COST_ROLE_BYTE_SECONDS: "cost/byte_seconds of one role",
    COST_SAMPLES_PER_CORE_SECOND: "total/samples_trained over cost/core_seconds",
    WORKER_START_SECONDS: "median seconds from asking for a worker to its first step",
    SERVER_START_SECONDS: "median seconds from asking for a parameter server until it has registered",
    TRAFFIC_PULLED: "bytes that workers got from the servers per trained sample",
    TRAFFIC_PUSHED: "bytes of gradients that workers sent per trained sample",
    TRAFFIC_READ: "bytes of a trained sample on the way from the reader to the worker",
    TRAFFIC_READ_PLAIN: "what traffic/read_bytes_per_sample would be without deduplication",
    DATA_ROWS: "rows of an inspected log's sample",
    DATA_SESSIONS: "sessions of that sample",
    DATA_SAMPLES_PER_SESSION: "rows per session of that sample",
    DATA_GROUPS: "groups of features that are worth deduplicating",
    DATA_BEFORE: "bytes stored or sent, or ids pooled, in order of the log and without deduplication",
    DATA_AFTER: "the same clustered by session and deduplicated",
    DATA_RATIO: "how many times fewer that is",
    DATA_FACTOR: "numbers of a feature in clustered batches per number of its distinct rows",
    DATA_FACTOR_PREDICTED: "what the model of sessions predicts for that",
    SCALING_WORKERS: "workers that the last round of scaling decided for",
    SCALING_PREDICTED: "samples per second that the throughput model predicts for that decision",
    SCALING_GAIN: "samples per second that the decision is predicted to bring, overhead taken off",
    SCALING_CHANGED: "1 when the round changed the job, 0 when it stayed",
    SCALING_LAST_PREDICTED_GAIN: "samples per second that the last plan carried out was predicted to bring",
    SCALING_LAST_MEASURED_GAIN: "samples per second that it brought, as measured before and after it",
    CONFIGURATION: "a number of the job file or of the allocation, as a metric because MLflow compares only those by >",
}
"""Meaning and unit by name; `{}` stands for the changing part."""

_PLACE = re.compile(r"(?:^|-)((?:master|worker|ps|evaluator)(?:-\d+)?)(?:-r\d+)?$")
_UNSAFE = re.compile(r"[^A-Za-z0-9_\-. :]")


def named(template: str, **parts: str) -> str:
    """A name with its changing parts filled in; characters that MLflow refuses become `_`."""
    return template.format(**{key: _UNSAFE.sub("_", value) for key, value in parts.items()})


def place(pod: str) -> str:
    """A pod's place in its job: `worker-0` of `clicks-20260101-worker-0-r1`.

    So the series of two jobs lie side by side, and a replacement goes on with its predecessor's.
    """
    found = _PLACE.search(pod)
    return found.group(1) if found else pod

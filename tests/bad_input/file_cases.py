"""Files that are not job files, and fields with impossible values."""

from __future__ import annotations

from typing import Any

from tests.bad_input.case import Arguments, Case, Place, call, run, with_field

FILE = "The job file itself"
FIELDS = "Fields"
TOGETHER = "Combinations"
DATA = "spec.data"


def raw(text: str | bytes) -> Arguments:
    """`elastrec run` on a file with this text."""

    def prepare(place: Place) -> list[str]:
        place.content = {}
        place.job_file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return run(place)

    return prepare


def several(**changes: Any) -> Arguments:
    """`__` in a name stands for a dot."""

    def prepare(place: Place) -> list[str]:
        for path, value in changes.items():
            place.set("spec." + path.replace("__", "."), value)
        return run(place)

    return prepare


def _bomb() -> str:
    """Ten levels of nine aliases each."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    return "\n".join(lines) + "\n"


CASES = [
    Case(FILE, "the file does not exist", call("run", "nowhere.yaml"), ("file", "nowhere.yaml", "YAML", "the path")),
    Case(FILE, "a folder in the file's place", call("run", "CLICKS"), ("FILE", "clicks", "is a directory")),
    Case(FILE, "an empty file", raw(""), ("file", "empty", "apiVersion")),
    Case(FILE, "text that is no YAML", raw("a: [1\nb: 2"), ("file", "YAML", "check indentation")),
    Case(FILE, "a list", raw("- 1\n- 2\n"), ("file", "list", "mapping", "apiVersion")),
    Case(FILE, "Latin-1 text", raw("metadata: {name: Zo\xeb}\n".encode("latin-1")), ("file", "utf-8", "UTF-8")),
    Case(FILE, "a YAML tag that would run code", raw("a: !!python/object/apply:os.system [ls]\nb: 1\n"),
         ("file", "python/object", "YAML")),
    Case(FILE, "a key that stands twice", raw("kind: TrainingJob\nkind: TrainingJob\n"),
         ("file", "'kind'", "once", "line 2")),
    Case(FILE, "aliases that stand for gigabytes", raw(_bomb()),
         ("file", "line 7", "at most 10,000,000 characters", "remove aliases")),
    Case(FILE, "an alias that holds itself", raw("kind: &a [*a]\n"), ("line 1", "holds itself", "remove aliases")),
    Case(FILE, "ten thousand brackets", raw("kind: " + "[" * 10_000 + "]" * 10_000 + "\n"), ("nested", "levels")),
    Case(FILE, "another version", with_field("apiVersion", "elastrec.io/v2"), ("apiVersion", "v2", "v1alpha1")),
    Case(FILE, "another kind", with_field("kind", "Job"), ("kind", "'Job'", "TrainingJob")),
    Case(FILE, "no spec", with_field("spec", ...), ("spec", "missing", "add the field")),
    Case(FILE, "a name with capitals", with_field("metadata.name", "Click"), ("metadata.name", "'Click'", "a-z0-9")),
    Case(FILE, "a name of 41 characters", with_field("metadata.name", "a" * 41), ("metadata.name", "aaa", "40")),
    Case(FILE, "a team with a space", with_field("metadata.team", "my team"), ("metadata.team", "my team", "match")),
    Case(FIELDS, "a misspelled field", with_field("spec.training.batch_sizes", 512),
         ("spec.training.batch_sizes", "unknown", "did you mean 'batch_size'")),
    Case(FIELDS, "a section that does not exist", with_field("spec.trainer", {"epochs": 1}),
         ("spec.trainer", "unknown", "the fields", "did you mean 'training'")),
    Case(FIELDS, "a batch of no rows", with_field("spec.training.batch_size", 0),
         ("spec.training.batch_size", "0", "at least 1")),
    Case(FIELDS, "text where a number belongs", with_field("spec.training.batch_size", "many"),
         ("spec.training.batch_size", "'many'", "integer")),
    Case(FIELDS, "yes where a number belongs", with_field("spec.training.batch_size", True),
         ("spec.training.batch_size", "True", "number")),
    Case(FIELDS, "a fraction where a whole number belongs", with_field("spec.training.epochs", 1.5),
         ("spec.training.epochs", "1.5", "integer")),
    Case(FIELDS, "a negative seed", with_field("spec.training.seed", -1), ("spec.training.seed", "-1", "at least 0")),
    Case(FIELDS, "a price without its currency",
         with_field("spec.history.prices", {"core_hour": 1, "gibibyte_hour": 0}),
         ("spec.history.prices.currency", "missing", "add the field")),
    Case(FIELDS, "a currency by its sign",
         with_field("spec.history.prices", {"core_hour": 1, "gibibyte_hour": 0, "currency": "€"}),
         ("spec.history.prices.currency", "'€'", "[A-Z]{3}")),
    Case(FIELDS, "prices that are all 0",
         with_field("spec.history.prices", {"core_hour": 0, "gibibyte_hour": 0, "currency": "EUR"}),
         ("spec.history.prices", "both 0", "set at least one")),
    Case(FIELDS, "an unknown consistency", with_field("spec.training.consistency", {"mode": "sync"}),
         ("consistency.mode", "'sync'", "'async', 'bsp' or 'ssp'")),
    Case(FIELDS, "rows of 4,096 numbers", with_field("spec.model.embedding_dimension", 4096),
         ("embedding_dimension", "4096", "at most 1024")),
    Case(FIELDS, "memory in another unit", with_field("spec.resources.worker.memory", "2GB"),
         ("resources.worker.memory", "'2GB'", "2Gi")),
    Case(FIELDS, "no memory", with_field("spec.resources.worker.memory", 0),
         ("resources.worker.memory", "0", "at least 16Mi")),
    Case(FIELDS, "a size that forgets its unit", with_field("spec.resources.worker.memory", 2),
         ("resources.worker.memory", "2", "at least 16Mi", "2Gi")),
    Case(FIELDS, "negative cores", with_field("spec.resources.worker.cores", -1),
         ("resources.worker.cores", "-1", "more than 0")),
    Case(FIELDS, "cores in words", with_field("spec.resources.worker.cores", "two"),
         ("resources.worker.cores", "'two'", "500m")),
    Case(FIELDS, "cores without end", with_field("spec.resources.worker.cores", float("inf")),
         ("resources.worker.cores", "inf", "finite")),
    Case(FIELDS, "two masters", with_field("spec.resources.master.count", 2),
         ("resources.master", "count", "exactly one", "remove")),
    Case(FIELDS, "an interval in words", with_field("spec.checkpoint.interval", "5 minutes"),
         ("checkpoint.interval", "'5 minutes'", "5m")),
    Case(FIELDS, "a negative interval", with_field("spec.checkpoint.interval", -5),
         ("checkpoint.interval", "-5", "at least 0")),
    Case(FIELDS, "a store without a name", with_field("spec.checkpoint.store", ""), ("checkpoint.store", "''", "1")),
    Case(FIELDS, "a lease of no time", with_field("spec.faults.lease", 0), ("faults.lease", "0", "more than 0")),
    Case(FIELDS, "heartbeats without a pause", with_field("spec.faults.heartbeat_interval", "0s"),
         ("heartbeat_interval", "0", "more than 0")),
    Case(FIELDS, "an unknown metric", with_field("spec.gate.metric", "accuracy"),
         ("gate.metric", "'accuracy'", "'auc', 'normalized_entropy' or 'normalized_error'")),
    Case(FIELDS, "a learning rate that is no number", with_field("spec.optimizers.rows", {"learning_rate": "nan"}),
         ("optimizers.rows.learning_rate", "nan", "finite")),
    Case(FIELDS, "an unknown optimiser", with_field("spec.optimizers.rows", {"kind": "lamb"}),
         ("optimizers.rows.kind", "'lamb'", "'adagrad', 'adam', 'sgd' or 'ftrl'")),
    Case(FIELDS, "ftrl for dense parameters", with_field("spec.optimizers.dense", {"kind": "ftrl"}),
         ("spec.optimizers", "dense.kind must be adagrad, adam or sgd", "embedding rows")),
    Case(FIELDS, "ftrl that divides by zero", with_field("spec.optimizers.rows", {"kind": "ftrl", "beta": 0}),
         ("optimizers.rows", "beta, initial_accumulator and l2 must be above 0", "ftrl divides")),
    Case(FIELDS, "an unknown file format", with_field("spec.data.format", "xml"),
         ("spec.data.format", "'xml'", "'criteo_tsv', 'csv', 'libsvm' or 'parquet'")),
    Case(FIELDS, "an unknown pooling", with_field("spec.data.sparse.0.pooling", "max"),
         ("spec.data.sparse.0.pooling", "'max'", "'sum', 'mean' or 'attention'")),
    Case(FIELDS, "attention over a single id", with_field("spec.data.sparse.0.pooling", "attention"),
         ("spec.data.sparse.0", "is_list: true", "remove it")),
    Case(FIELDS, "an unknown transform of a number", with_field("spec.data.dense.0.transform", "sqrt"),
         ("spec.data.dense.0.transform", "'sqrt'", "'none', 'log1p' or 'standardize'")),
    Case(FIELDS, "steps of a feature that is none", with_field("spec.data.features", {"I11": [{"step": "log1p"}]}),
         ("spec.data.features.I11", "'I11'", "I1", "did you mean 'I1'")),
    Case(FIELDS, "an unknown step", with_field("spec.data.features", {"I1": [{"step": "clp"}]}),
         ("spec.data.features.I1.0.step", "'clp'", "fill_null", "did you mean 'clip'")),
    Case(FIELDS, "a step with a misspelled field",
         with_field("spec.data.features", {"I1": [{"step": "clip", "lo": 0}]}),
         ("spec.data.features.I1.0.lo", "unknown field", "high, low", "did you mean 'low'")),
    Case(FIELDS, "boundaries that fall",
         with_field("spec.data.features", {"C1": [{"step": "bucketize", "boundaries": [5, 1]}]}),
         ("spec.data.features.C1.0.boundaries", "[5, 1]", "numbers that rise")),
    Case(FIELDS, "a hash to no ids", with_field("spec.data.features", {"C1": [{"step": "hash", "size": 0}]}),
         ("spec.data.features.C1.0.size", "0", "at least 1")),
    Case(FIELDS, "a mean without a scale",
         with_field("spec.data.features", {"I1": [{"step": "standardize", "mean": 3}]}),
         ("spec.data.features.I1.0", "mean and scale, or neither", "fitted")),
    Case(FIELDS, "a scale of zero", with_field("spec.data.dense.0.scale", 0),
         ("spec.data.dense.0.scale", "0", "more than 0")),
    Case(FIELDS, "a record to start from that is not there", with_field("spec.continual.start_from", "newest"),
         ("continual.start_from", "'newest'", "latest, nothing or the URI")),
    Case(FIELDS, "a delimiter of two characters", with_field("spec.data.csv", {"delimiter": ";;"}),
         ("data.csv.delimiter", "';;'", "at most 1 character")),
    Case(FIELDS, "a time zone that does not exist", with_field("spec.data.timezone", "America/Los_Angelos"),
         ("spec.data.timezone", "'America/Los_Angelos'", "IANA", "did you mean 'America/Los_Angeles'")),
    Case(FIELDS, "an encoding that does not exist", with_field("spec.data.csv", {"encoding": "klingon"}),
         ("data.csv.encoding", "'klingon'", "ASCII stands for itself", "latin-1")),
    Case(TOGETHER, "one character for fields and fractions",
         several(data__format="csv", data__csv={"decimal_point": ","}),
         ("data.csv: delimiter and decimal_point are both ','; numbers need another character",)),
    Case(TOGETHER, "folders of partitions that do not say the day",
         several(data__partition_folder="month=%Y-%m"),
         (DATA, "partition_folder 'month=%Y-%m'", "%Y, %m and %d", "month year")),
    Case(TOGETHER, "folders of hours where days are promised",
         several(data__partition_folder="dt=%Y-%m-%d/hour=%H"),
         (DATA, "partition_folder", "partitioning: day", "hour")),
    Case(TOGETHER, "folders of partitions where there are none",
         several(data__partitioning="none", data__partition_folder="dt=%Y-%m-%d"),
         (DATA, "partition_folder", "remove it")),
    Case(TOGETHER, "staleness without ssp", with_field("spec.training.consistency", {"mode": "bsp", "staleness": 2}),
         ("training.consistency", "staleness 2", "set mode: ssp")),
    Case(TOGETHER, "a table without a feature", with_field("spec.tables", {"C9": {"hash_size": 10}}),
         ("tables", "'C9'", "known tables", "'C1'")),
    Case(TOGETHER, "steps beside their short form",
         several(data__dense=[{"name": "I1", "transform": "log1p"}], data__features={"I1": [{"step": "log1p"}]}),
         ("spec.data.features.I1", "`transform`", "one of the two", "remove it")),
    Case(TOGETHER, "buckets for a dense feature",
         with_field("spec.data.features", {"I1": [{"step": "bucketize", "boundaries": [1, 5]}]}),
         ("spec.data.features.I1", "gives ids", "gives numbers", "under sparse")),
    Case(TOGETHER, "a number where a text is looked up",
         with_field("spec.data.features", {"C3": [{"step": "vocabulary", "values": ["a", 5]}]}),
         ("spec.data.features.C3.0", "5", "text", "quotes")),
    Case(TOGETHER, "the first values of no list",
         with_field("spec.data.features", {"C1": [{"step": "keep_first", "count": 2}]}),
         ("spec.data.features.C1.0", "keep_first", "single values", "is_list: true")),
    Case(TOGETHER, "a cross with the label",
         several(data__features={"C1": [{"step": "cross", "columns": ["C2", "label"]}]}),
         ("spec.data.features.C1.0.columns", "'label'", "no label", "another column")),
    Case(TOGETHER, "a vocabulary file that is not there",
         with_field("spec.data.features", {"C3": [{"step": "vocabulary", "file": "towns.txt"}]}),
         ("towns.txt",)),
    Case(TOGETHER, "a timeout shorter than two heartbeats",
         several(faults={"heartbeat_interval": "10s", "heartbeat_timeout": "15s"}),
         ("heartbeat_timeout 15.0s", "heartbeat_interval 10.0s", "twice")),
    Case(TOGETHER, "more servers than buckets",
         several(resources__parameter_server__count=65, resources__virtual_buckets=64),
         ("parameter_server.count 65", "virtual_buckets 64")),
    Case(TOGETHER, "no sparse feature", with_field("spec.data.sparse", []), ("spec.data.sparse", "[]", "at least one")),
    Case(TOGETHER, "the same column twice", with_field("spec.data.sparse.1.name", "C1"),
         (DATA, "'C1'", "more than once")),
    Case(TOGETHER, "the label among the features", with_field("spec.data.sparse.0.name", "label"),
         (DATA, "'label'", "more than once")),
    Case(TOGETHER, "a feature named `dense`", with_field("spec.data.sparse.0.name", "dense"),
         ("sparse", "'dense'", "anything but label and dense")),
    Case(TOGETHER, "one table, two poolings",
         several(data__sparse=[{"name": "C1", "table": "T", "is_list": True},
                               {"name": "C3", "table": "T", "is_list": True, "pooling": "mean"}]),
         (DATA, "'T'", "different pooling", "give each pooling a table")),
    Case(TOGETHER, "a list that attention and the model pool",
         several(model={"architecture": "bst", "options": {"sequences": ["C1"]}},
                 data__sparse=[{"name": "C1", "is_list": True, "pooling": "attention"}, {"name": "C2"}]),
         ("spec", "bst pools ['C1'] itself", "remove pooling: attention")),
    Case(TOGETHER, "evaluation rows although there are days", with_field("spec.data.evaluation_path", "elsewhere"),
         (DATA, "evaluation_path", "partitioning: none")),
    Case(TOGETHER, "no evaluation rows although there are no days", with_field("spec.data.partitioning", "none"),
         ("spec.data.evaluation_path", "missing", "add it")),
    Case(TOGETHER, "text without header and names", several(data__format="csv", data__csv={"has_header": False}),
         (DATA, "csv.column_names", "has_header")),
    Case(TOGETHER, "one character for fields and lists",
         several(data__format="csv", data__csv={"delimiter": "|"}),
         (DATA, "'|'", "delimiter", "list_separator")),
    Case(TOGETHER, "a number of bad rows although none may be", with_field("spec.data.bad_rows", {"at_most": 5}),
         ("data.bad_rows", "at_most 5", "policy: skip")),
]  # fmt: skip

"""Wrong calls of the command line."""

from __future__ import annotations

import gzip

from tests.bad_input.case import DAYS, ROWS, Arguments, Case, Place, call

DATES = "Dates"
OVERRIDES = "Overrides"
COMMANDS = "Commands"
MAKING = "Making data"
AROUND = "Surroundings"
FIRST, SECOND, LAST = DAYS


def override(text: str) -> Arguments:
    return call("run", "JOB", "--set", text)


def dates(*arguments: str) -> Arguments:
    return call("run", "JOB", *arguments)


def around(variable: str, text: str | None, *arguments: str) -> Arguments:
    """A call with a variable that names a file with this text (None: the text itself is no file)."""

    def prepare(place: Place) -> list[str]:
        file = place.folder / "surroundings"
        if text is not None:
            file.write_text(text)
        place.environment[variable] = str(file)
        return call(*arguments)(place)

    return prepare


def convert(description: str, *arguments: str) -> Arguments:
    def prepare(place: Place) -> list[str]:
        file = place.folder / "described.yaml"
        file.write_text(description)
        return call("data", "convert", "CLICKS", "NEW", "--description", str(file), *arguments)(place)

    return prepare


def _cut_off(place: Place) -> list[str]:
    body = gzip.compress(("label,C1\n" + "0,1\n" * 1000).encode())
    (place.log / "part-0.csv.gz").write_bytes(body[:-20])
    return [
        part if part != str(place.log) else f"{part}/part-0.csv.gz"
        for part in convert("{format: csv, sparse: [{name: C1}]}\n", "--rows-per-day", "4")(place)
    ]


def _milliseconds(place: Place) -> list[str]:
    for day in DAYS:
        place.write(day, time=[1767225600000 + i for i in range(ROWS)])
    return convert("{format: parquet, sparse: [{name: C1}], timestamp: time}\n", "--by-time")(place)


def _one_second(place: Place) -> list[str]:
    for day in DAYS:
        place.write(day, time=[1767225600] * ROWS)
    timed = "{format: parquet, sparse: [{name: C1}], timestamp: time}\n"
    return convert(timed, "--by-time", "--fractions", "0.8,0.2")(place)


DESCRIBED = "{format: parquet, sparse: [{name: C1}]}\n"

CASES = [
    Case(DATES, "a word", dates("--from", "yesterday"), ("--from", "'yesterday'", "ISO 8601", "2026-01-31")),
    Case(DATES, "a day that no calendar has", dates("--from", "2026-02-30"), ("--from", "'2026-02-30'", "ISO 8601")),
    Case(DATES, "an empty variable of a script", dates("--from", ""), ("--from", "''", "ISO 8601", "2026-01-31")),
    Case(DATES, "an end that is empty", dates("--from", FIRST, "--until", ""), ("--until", "''", "ISO 8601")),
    Case(DATES, "an end without a beginning", dates("--until", SECOND), ("--from", "missing", "together with --until")),
    Case(DATES, "an end before the beginning", dates("--from", LAST, "--until", FIRST),
         ("interval", "2026-01-03", "start before end")),
    Case(DATES, "evaluation that ends before it begins",
         dates("--from", FIRST, "--until", SECOND, "--evaluate-until", FIRST),
         ("interval", "start before end, and evaluation", "before its own end")),
    Case(DATES, "evaluation on days of the training",
         dates("--from", FIRST, "--until", LAST, "--evaluate-from", SECOND),
         ("interval", "2026-01-02", "evaluation that begins at that end or later")),
    Case(DATES, "days that are not there", dates("--from", "2027-01-01"),
         ("day=2027-01-01 is missing", "from day=2026-01-01 to day=2026-01-03")),
    Case(DATES, "an hour of daily data", dates("--from", "2026-01-01T07:00", "--until", "2026-01-01T09:00"),
         ("no day begins", "2026-01-01 07:00", "at least one partition")),
    Case(OVERRIDES, "no equals sign", override("spec.training.batch_size"), ("--set", "PATH=VALUE", "for example")),
    Case(OVERRIDES, "no path", override("=5"), ("--set", "'=5'", "PATH=VALUE")),
    Case(OVERRIDES, "an empty part of a path", override("spec..epochs=5"), ("spec..epochs", "''", "check the path")),
    Case(OVERRIDES, "an unknown field", override("spec.training.epoch=5"),
         ("spec.training.epoch", "unknown", "did you mean 'epochs'")),
    Case(OVERRIDES, "an element whose number is a superscript", override("spec.data.sparse.².name=x"),
         ("spec.data.sparse.².name", "'²'", "an index below 4")),
    Case(OVERRIDES, "an element that is not there", override("spec.data.sparse.9.name=x"),
         ("spec.data.sparse.9.name", "'9'", "an index below 4")),
    Case(OVERRIDES, "a path through a value", override("metadata.name.first=x"),
         ("metadata.name.first", "'first'", "mappings and lists")),
    Case(OVERRIDES, "a value that is no YAML", override("spec.training.epochs=[1"), ("--set", "[1", "PATH=VALUE")),
    Case(OVERRIDES, "a value of another type", override("spec.training.epochs=all"),
         ("spec.training.epochs", "'all'", "whole number")),
    Case(COMMANDS, "no command of this name", call("valid"), ("'valid'", "Did you mean 'validate'")),
    Case(COMMANDS, "no file", call("run"), ("Missing argument", "FILE")),
    Case(COMMANDS, "no option of this name", call("run", "JOB", "--form", FIRST), ("--form", "--from")),
    Case(COMMANDS, "a form of output that is not offered", call("validate", "JOB", "-o", "xml"),
         ("--output", "'xml'", "'text'", "'json'")),
    Case(COMMANDS, "status of an unknown job", call("status", "click-0"),
         ("JOB", "'click-0'", "of the cluster", "no jobs")),
    Case(COMMANDS, "status of an unknown job as JSON", call("status", "click-0", "-o", "json"),
         ("JOB", "'click-0'", "of the cluster", "no jobs")),
    Case(COMMANDS, "the log of an unknown pod", call("logs", "click-0-worker-0"),
         ("JOB", "'click-0-worker-0'", "of the cluster", "no jobs")),
    Case(COMMANDS, "no lines of a log", call("logs", "click-0", "--tail", "0"), ("--tail", "0", "x>=1")),
    Case(COMMANDS, "stopping an unknown job", call("stop", "click-0"),
         ("JOB", "'click-0'", "of the cluster", "no jobs")),
    Case(COMMANDS, "an agent with memory in another unit", call("agent", "start", "--memory", "8GB"),
         ("--memory", "'8GB'", "2Gi")),
    Case(COMMANDS, "an agent with more memory than there is", call("agent", "start", "--memory", "99999999999Ti"),
         ("--memory", "'99999999999Ti'", "at most 9223372036854775807 bytes")),
    Case(COMMANDS, "an agent without memory", call("agent", "start", "--memory", "0Gi"),
         ("--memory", "'0Gi'", "more than 0")),
    Case(COMMANDS, "an agent with cores that are no number", call("agent", "start", "--cores", "nan"),
         ("--cores", "nan is not a finite number")),
    Case(COMMANDS, "an agent with negative cores", call("agent", "start", "--cores", "-1"), ("--cores", "-1", "x>0")),
    Case(MAKING, "days of no rows", call("data", "generate", "NEW", "--rows-per-day", "0"),
         ("rows_per_day", "0", "at least 1")),
    Case(MAKING, "a first day that is no date", call("data", "generate", "NEW", "--start", "soon"),
         ("start", "'soon'", "date")),
    Case(MAKING, "days after the last date", call("data", "generate", "NEW", "--start", "9999-12-29", "--days", "3"),
         ("start: 9999-12-29 with 3 days", "end before 9999-12-31", "begin earlier or make fewer days")),
    Case(MAKING, "features that Criteo's format does not have",
         call("data", "generate", "NEW", "--format", "criteo_tsv", "--dense", "3"),
         ("- criteo_tsv has 13 dense", "found dense 3")),
    Case(MAKING, "an AUC that cannot be", call("data", "generate", "NEW", "--best-auc", "1.5"), ("best_auc", "1.5")),
    Case(MAKING, "an unknown property", call("data", "generate", "NEW", "--set", "zipf=2"),
         ("zipf", "unknown", "zipf_exponent")),
    Case(MAKING, "a format that is not offered", call("data", "generate", "NEW", "--format", "avro"),
         ("--format", "'avro'", "'parquet'")),
    Case(MAKING, "a folder that holds something else", call("data", "generate", "CLICKS"),
         ("clicks", "not generated", "choose another folder")),
    Case(MAKING, "converting without saying how to cut days", convert(DESCRIBED),
         ("layout", "--by-time", "--fractions", "--rows-per-day")),
    Case(MAKING, "converting by a description that is no YAML", convert("{a: [1\n", "--rows-per-day", "4"),
         ("described.yaml", "YAML", "check indentation")),
    Case(MAKING, "converting by a description that misses something", convert("{format: csv}\n", "--rows-per-day", "4"),
         ("described.yaml", "sparse", "missing", "add the field")),
    Case(MAKING, "converting by a description with two kinds of labels",
         convert("{format: csv, sparse: [{name: C1}], label: click, labels: [{name: buy}]}\n", "--rows-per-day", "4"),
         ("described.yaml", "- label and labels are both set", "'click'")),
    Case(MAKING, "converting with a rule that is none", convert(DESCRIBED, "--rows-per-day", "4", "--label-rule", "I1"),
         ("label rule", "'I1'", ">=")),
    Case(MAKING, "converting by time without times", convert(DESCRIBED, "--by-time"),
         ("data.timestamp", "needed to split by time", "name the column")),
    Case(MAKING, "milliseconds where seconds are promised", _milliseconds,
         ("row 0", "'time'", "expected seconds since the epoch", "data.timestamp_unit")),
    Case(MAKING, "converting compressed text that was cut off", _cut_off,
         ("part-0.csv.gz", "cannot be read", "copy it again")),
    Case(MAKING, "fractions that are no numbers", convert(DESCRIBED, "--fractions", "most,rest"),
         ("fractions", "'most'", "number")),
    Case(MAKING, "fractions below zero", convert(DESCRIBED, "--fractions", "1.2,-0.2"),
         ("fractions", "-0.2", "above 0", "0.8,0.2")),
    Case(MAKING, "fractions that do not add up to one", convert(DESCRIBED, "--fractions", "0.5,0.3"),
         ("fractions", "0.5,0.3", "sum 0.8", "0.625,0.375")),
    Case(MAKING, "a fraction that gets no row", convert(DESCRIBED, "--fractions", "0.99,0.01"),
         ("fractions", "0.01 of 24 rows", "2026-01-02 would have no row", "at least one row", "1/24")),
    Case(MAKING, "fractions that divide the rows of one second", _one_second,
         ("fractions", "0.8 in order of time", "24 of 24 rows", "1767225600", "stay together",
          "use fewer or other fractions")),
    Case(MAKING, "days of minus four rows", convert(DESCRIBED, "--rows-per-day", "-4"), ("rows", "-4", "1 and above")),
    Case(AROUND, "a cluster file that is not there", around("ELASTREC_CLUSTER", None, "run", "JOB"),
         ("ELASTREC_CLUSTER", "surroundings", "readable cluster file")),
    Case(AROUND, "a cluster file that is no JSON", around("ELASTREC_CLUSTER", "backend: local", "run", "JOB"),
         ("ELASTREC_CLUSTER", "surroundings", "cluster: this text", "JSON is malformed", "the field backend: local")),
    Case(AROUND, "a cluster of an unknown kind",
         around("ELASTREC_CLUSTER", '{"backend": "mesos", "address": "", "token": ""}', "run", "JOB"),
         ("backend", "'mesos'", "local", "install a package", "elastrec.clusters")),
    Case(AROUND, "a file in the home folder's place", around("ELASTREC_HOME", "not a folder", "run", "JOB"),
         ("ELASTREC_HOME", "surroundings", "a folder")),
    Case(AROUND, "TLS from a folder that is none", around("ELASTREC_TLS", None, "run", "JOB"),
         ("ELASTREC_TLS", "surroundings", "no ca.pem", "a folder with ca.pem, tls.crt, tls.key")),
]  # fmt: skip

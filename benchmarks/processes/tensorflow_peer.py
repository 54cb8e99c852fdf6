"""TensorFlow's ParameterServerStrategy on the benchmark's Wide & Deep: one coordinator, one server, one worker.

Runs in an environment with TensorFlow and NumPy alone, so nothing of this repository is imported. The code follows
TensorFlow's guide on parameter servers, and uses the faster way if there are several: ids are made unique before rows
are fetched, updates are TensorFlow's own fused operators on the device of their variables, several steps may be in one
scheduled function, and the worker's rows are in memory.

Roles: `coordinator BATCH ROWS TABLES STEPS_PER_CALL`, which starts `ps` and `worker` itself and answers lines of JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import time
import traceback
from typing import Any

import numpy as np

DENSE, FEATURES, ROW, LAYERS = 13, 26, 16, (256, 128)
ROW_RATE, DENSE_RATE = 0.02, 0.001


def batches(batch: int, rows: int) -> tuple[Any, Any, Any]:
    """ids int64 `[N, F, B]`, dense float32 `[N, B, I]`, labels float32 `[N, B]`: ids as Zipf's law has them."""
    random = np.random.default_rng(0)
    count, vocabulary = max(8, 32768 // batch), rows // FEATURES
    cumulated = np.cumsum(np.arange(1, vocabulary + 1, dtype=np.float64) ** -1.1)
    shuffled = random.permutation(vocabulary)
    ranks = np.searchsorted(cumulated, random.random(count * FEATURES * batch) * cumulated[-1])
    ids = shuffled[np.minimum(ranks, vocabulary - 1)].reshape(count, FEATURES, batch)
    dense = random.normal(size=(count, batch, DENSE)).astype(np.float32)
    return ids.astype(np.int64), dense, (random.random((count, batch)) < 0.3).astype(np.float32)


def start(role: str, cluster: dict[str, list[str]]) -> None:
    """A TensorFlow server of a role, for ever."""
    import tensorflow as tf

    # Operators compute on one thread. Those between operators only wait for each other: with one, nothing would move.
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=4)
    server = tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=role, task_index=0, protocol="grpc", config=config
    )
    server.join()


class WideAndDeep:
    """The network and its updates; variables are made under the strategy's scope.

    Args:
        tables: 26 variables, or 1 with all tables concatenated.
    """

    def __init__(self, strategy: Any, rows: int, tables: int) -> None:
        import tensorflow as tf

        self.vocabulary, self.tables = rows // FEATURES, tables
        each = self.vocabulary * FEATURES // tables
        sizes = [FEATURES * (ROW - 1) + DENSE, *LAYERS, 1]
        shapes = [shape for n, m in itertools.pairwise(sizes) for shape in ([n, m], [m])] + [[DENSE, 1], [1]]

        def variable(shape: list[int], deviation: float) -> Any:
            return tf.Variable(lambda: tf.random.truncated_normal(shape, stddev=deviation))

        with strategy.scope():
            self.rows = [variable([each, ROW], 0.25) for _ in range(tables)]
            # Row-wise, as ours: one number per row.
            self.sums = [tf.Variable(lambda: tf.zeros([each, 1])) for _ in range(tables)]
            self.dense = [variable(shape, 0.05) for shape in shapes]
            self.first = [tf.Variable(lambda s=shape: tf.zeros(s)) for shape in shapes]
            self.second = [tf.Variable(lambda s=shape: tf.zeros(s)) for shape in shapes]
            self.powers = [tf.Variable(0.9), tf.Variable(0.999)]

    def step(self, ids_FB: Any, dense_BI: Any, label_B: Any) -> None:
        import tensorflow as tf

        parts = tf.unstack(ids_FB) if self.tables > 1 else [tf.reshape(self._shifted(ids_FB), [-1])]
        unique = [tf.unique(part) for part in parts]
        pulled = [tf.gather(table, found.y) for table, found in zip(self.rows, unique, strict=True)]
        weights = [variable.read_value() for variable in self.dense]
        with tf.GradientTape() as tape:
            tape.watch(pulled)
            tape.watch(weights)
            rows_FBR = tf.stack([tf.gather(rows, found.idx) for rows, found in zip(pulled, unique, strict=True)])
            rows_FBR = tf.reshape(rows_FBR, [FEATURES, -1, ROW])
            deep = tf.reshape(tf.transpose(rows_FBR[:, :, 1:], [1, 0, 2]), [-1, FEATURES * (ROW - 1)])
            hidden = tf.concat([deep, dense_BI], 1)
            for layer in range(len(LAYERS) + 1):
                hidden = hidden @ weights[2 * layer] + weights[2 * layer + 1]
                hidden = tf.nn.relu(hidden) if layer < len(LAYERS) else hidden
            wide = tf.reduce_sum(rows_FBR[:, :, 0], 0) + (dense_BI @ weights[-2] + weights[-1])[:, 0]
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label_B, wide + hidden[:, 0]))
        sparse, gradients = tape.gradient(loss, [pulled, weights])
        row_gradients = [tf.convert_to_tensor(gradient) for gradient in sparse]
        for table, sums, found, gradient in zip(self.rows, self.sums, unique, row_gradients, strict=True):
            self._adagrad(table, sums, found.y, gradient)
        self._adam(gradients)

    def _shifted(self, ids_FB: Any) -> Any:
        import tensorflow as tf

        return ids_FB + (tf.range(FEATURES, dtype=tf.int64) * self.vocabulary)[:, None]

    def _adagrad(self, table: Any, sums: Any, ids: Any, gradient: Any) -> None:
        import tensorflow as tf

        with tf.device(table.device):
            ids, gradient = tf.identity(ids), tf.identity(gradient)
            sums.scatter_add(tf.IndexedSlices(tf.reduce_mean(gradient**2, 1, keepdims=True), ids))
            step = ROW_RATE * gradient / (tf.sqrt(tf.gather(sums, ids)) + 1e-8)
            table.scatter_sub(tf.IndexedSlices(step, ids))

    def _adam(self, gradients: list[Any]) -> None:
        import tensorflow as tf

        for variable, first, second, gradient in zip(self.dense, self.first, self.second, gradients, strict=True):
            with tf.device(variable.device):
                tf.raw_ops.ResourceApplyAdam(
                    var=variable.handle, m=first.handle, v=second.handle, beta1_power=self.powers[0].read_value(),
                    beta2_power=self.powers[1].read_value(), lr=DENSE_RATE, beta1=0.9, beta2=0.999, epsilon=1e-8,
                    grad=gradient,
                )  # fmt: skip
        for power, beta in zip(self.powers, (0.9, 0.999), strict=True):
            with tf.device(power.device):
                power.assign(power * beta)


def coordinate(batch: int, rows: int, tables: int, steps_per_call: int) -> None:
    """Starts server and worker, and answers `{"steps": N}` with the CPU seconds that N steps took the three of them."""
    code = 1
    names = ("ps", "worker")
    cluster = {name: [f"localhost:{port}"] for name, port in zip(names, free_ports(len(names)), strict=True)}
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.processes.tensorflow_peer", name, json.dumps(cluster)],
            stdin=subprocess.DEVNULL, stdout=sys.stderr,
        )
        for name in names
    ]  # fmt: skip
    try:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster), rpc_layer="grpc")
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        model = WideAndDeep(strategy, rows, tables)

        def dataset() -> Any:
            return tf.data.Dataset.from_tensor_slices(batches(batch, rows)).repeat()

        iterator = iter(coordinator.create_per_worker_dataset(dataset))

        @tf.function
        def train(entries: Any) -> None:
            for _ in tf.range(steps_per_call):
                model.step(*next(entries))

        def cpu_seconds() -> float:
            # How Linux numbers the CPU clock of another process (clock_getcpuclockid).
            return time.process_time() + sum(time.clock_gettime((~child.pid << 3) | 2) for child in children)

        coordinator.schedule(train, args=(iterator,))
        coordinator.join()
        print(json.dumps({"tensorflow": tf.__version__}), flush=True)
        for line in sys.stdin:
            calls = json.loads(line)["steps"] // steps_per_call
            began = cpu_seconds()
            for _ in range(calls):
                coordinator.schedule(train, args=(iterator,))
            coordinator.join()
            print(json.dumps({"cpu": cpu_seconds() - began, "steps": calls * steps_per_call}), flush=True)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for child in children:
            child.kill()
            child.wait()
        # The coordinator's own end would wait for servers that are gone.
        os._exit(code)


def free_ports(count: int) -> list[int]:
    """Ports on which no process listens now."""
    held = [socket.create_server(("localhost", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


if __name__ == "__main__":
    if sys.argv[1] == "coordinator":
        coordinate(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    else:
        start(sys.argv[1], json.loads(sys.argv[2]))

"""Training steps of the BiLSTM tagger in TensorFlow, for comparison with those in torch.

This script is for the Python of another environment, so it imports TensorFlow and numpy and nothing
of lsgd: PYTHON -I tensorflow_tagger.py SOCKET THREADS. As a process of lsgd.bench.job it answers
requests from the socket, one line of JSON each; with THREADS 0 TensorFlow chooses their number. A
request ["prepare", setting] loads a file of examples and has

    name        the name for later requests
    file        an .npz with the arrays of _ARRAYS
    length      the length to which every sentence is padded, so that each shape of a micro-batch
                gets a graph of its own, with static shapes; null pads to the longest of the
                micro-batch, and one graph is for all lengths, as its input signature leaves them
                open
    lstm        keras, a keras.layers.LSTM, or block, the whole sequence in one operation
    dtype       float32 or float64
    lr          of plain SGD

and ["run", name, number] makes `number` steps from the first one on, and repeats them after the
last.

The network looks tokens up, runs an LSTM over each sentence and another one over the reversed
sentence, and maps both outputs to tags by a linear layer. A sentence is reversed within its length,
so all padding comes after its tokens and changes none of them. The loss is the cross-entropy summed
over tokens, divided by the tokens of the step, which may have several micro-batches.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

_BEGIN = time.perf_counter()
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # its errors, without notes on its build

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

IMPORT_SECONDS = time.perf_counter() - _BEGIN

_ARRAYS = {
    "words": "of all sentences, one after the other",
    "tags": "of these words",
    "offsets": "where each sentence begins, and the end of the last",
    "order": "the sentences of the passes, one after the other",
    "pass_sizes": "sentences of each pass",
    "step_sizes": "passes of each step",
    "embedding": "words x E",
    **{
        f"{direction}_{name}": shape
        for direction in ("forward", "backward")
        for name, shape in (
            ("weight_ih", "4H x E, the gates as torch has them: input, forget, cell, output"),
            ("weight_hh", "4H x H"),
            ("bias_ih", "4H"),
            ("bias_hh", "4H"),
        )
    },
    "output_weight": "tags x 2H",
    "output_bias": "tags",
}
"""The arrays of a file of examples; weights are those of torch, in its layout."""

PaddedPass = tuple[Any, Any, Any]
"""Padded tokens and tags, of shape (sentences, length), and the lengths, as tensors."""


class UnusableError(Exception):
    """An error for a request that cannot be answered; the message is a sentence with the reason."""


class KerasLSTM:
    """An LSTM of Keras, which loops over the tokens within the graph."""

    def __init__(self, weights: Sequence[NDArray[Any]]) -> None:
        width, units = weights[0].shape[0], weights[1].shape[0]
        self._layer = tf.keras.layers.LSTM(
            units, return_sequences=True, use_cudnn=False, dtype=weights[0].dtype.name
        )
        self._layer.build((None, None, width))
        self._layer.set_weights(weights)
        self.weights = [each.value for each in self._layer.trainable_variables]

    def __call__(self, inputs: Any) -> Any:
        return self._layer(inputs)


class BlockLSTM:
    """TensorFlow's operation for a whole LSTM on a CPU, in float32 only."""

    def __init__(self, weights: Sequence[NDArray[Any]]) -> None:
        if weights[0].dtype != np.float32:
            raise UnusableError(
                "lstm block is there in float32 only; write dtype float32, or lstm keras"
            )
        self._units = weights[1].shape[0]
        # Its gates are input, cell, forget, output. BlockLSTMV2 has torch's order, but its gradient
        # is that of this operation, and so of other gates.
        self.weights = [tf.Variable(_cell_before_forget(each)) for each in weights]

    def __call__(self, inputs: Any) -> Any:
        kernel, recurrent, bias = self.weights
        unused, begin = tf.zeros(self._units), tf.zeros((tf.shape(inputs)[0], self._units))
        out = tf.raw_ops.BlockLSTM(
            seq_len_max=tf.shape(inputs, out_type=tf.int64)[1],
            x=tf.transpose(inputs, [1, 0, 2]),
            cs_prev=begin,
            h_prev=begin,
            w=tf.concat([kernel, recurrent], 0),
            wci=unused,
            wcf=unused,
            wco=unused,
            b=bias,
            forget_bias=0.0,
            cell_clip=-1.0,  # none
        )
        return tf.transpose(out.h, [1, 0, 2])


LSTMS: dict[str, Callable[[Sequence[NDArray[Any]]], Any]] = {"keras": KerasLSTM, "block": BlockLSTM}


class GraphTagger:
    """The tagger's network with its weights, and its training steps as graphs."""

    def __init__(self, arrays: dict[str, NDArray[Any]], setting: dict[str, Any]) -> None:
        dtype, lr = np.dtype(setting["dtype"]), setting["lr"]
        weights = {
            name: value.astype(dtype) for name, value in arrays.items() if value.dtype.kind == "f"
        }
        self._embedding = tf.Variable(weights["embedding"])
        self._directions = [
            LSTMS[setting["lstm"]](
                [
                    weights[f"{direction}_weight_ih"].T,
                    weights[f"{direction}_weight_hh"].T,
                    weights[f"{direction}_bias_ih"] + weights[f"{direction}_bias_hh"],
                ]
            )
            for direction in ("forward", "backward")
        ]
        self._output = [
            tf.Variable(weights["output_weight"].T),
            tf.Variable(weights["output_bias"]),
        ]
        self._dense, self._rates = list(self._output), [lr, lr]
        for direction in self._directions:
            self._dense += direction.weights
            # torch has two biases, and each gets the gradient of their sum.
            self._rates += [lr, lr, 2 * lr]
        self._lr, self._dtype = lr, dtype
        signature = None
        if setting["length"] is None:
            cells = tf.TensorSpec((None, None), tf.int32)
            signature = [cells, cells, tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), dtype)]
        self._step = tf.function(self._whole, input_signature=signature)
        self._gradients = tf.function(self._differentiate, input_signature=signature)

    def step(self, passes: Sequence[PaddedPass], word_count: int) -> float:
        """Make a training step of these micro-batches, and return its loss per token.

        `words` is the number of their tokens.
        """
        divisor = tf.constant(word_count, self._dtype)
        if len(passes) == 1:
            return float(self._step(*passes[0], divisor))
        gradients = [self._gradients(*each, divisor) for each in passes]
        losses, dense, indices, values = zip(*gradients, strict=True)
        summed = [tf.add_n(each) for each in zip(*dense, strict=True)]
        self._update(summed, tf.concat(indices, 0), tf.concat(values, 0))
        return float(tf.add_n(losses))

    def graphs(self) -> int:
        """Return the number of graphs that were traced so far."""
        functions = (self._step, self._gradients)
        return sum(each.experimental_get_tracing_count() for each in functions)

    def _whole(self, words: Any, tags: Any, lengths: Any, divisor: Any) -> Any:
        loss, *gradients = self._differentiate(words, tags, lengths, divisor)
        self._update(*gradients)
        return loss

    def _differentiate(self, words: Any, tags: Any, lengths: Any, divisor: Any) -> Any:
        """Return the loss, its dense gradients and the embedding's sparse gradient.

        The latter is a tensor of row indices and one of values.
        """
        with tf.GradientTape() as tape:
            inputs = tf.nn.embedding_lookup(self._embedding, words)
            forward, backward = self._directions
            outputs = tf.concat(
                [forward(inputs), _reversed(backward(_reversed(inputs, lengths)), lengths)], 2
            )
            weight, bias = self._output
            scores = tf.tensordot(outputs, weight, 1) + bias
            of_words = tf.nn.sparse_softmax_cross_entropy_with_logits(tags, scores)
            real = tf.sequence_mask(lengths, tf.shape(words)[1], dtype=scores.dtype)
            loss = tf.reduce_sum(real * of_words) / divisor
        rows, *dense = tape.gradient(loss, [self._embedding, *self._dense])
        return loss, dense, rows.indices, rows.values

    def _update(self, dense: Sequence[Any], indices: Any, values: Any) -> None:
        for variable, rate, gradient in zip(self._dense, self._rates, dense, strict=True):
            variable.assign_sub(rate * gradient)
        self._embedding.scatter_sub(tf.IndexedSlices(self._lr * values, indices))


class Examples:
    """The padded micro-batches of a file of examples, and the tagger that is trained on them."""

    def __init__(self, setting: dict[str, Any]) -> None:
        arrays = _read(setting["file"])
        _check(arrays, setting)
        self._tagger = GraphTagger(arrays, setting)
        groups = np.split(arrays["order"], np.cumsum(arrays["pass_sizes"])[:-1])
        passes = iter([_padded(arrays, group, setting["length"]) for group in groups])
        self._steps = []
        for size in arrays["step_sizes"]:
            of_step = list(islice(passes, int(size)))
            words = sum(int(lengths.numpy().sum()) for *_, lengths in of_step)
            self._steps.append((of_step, words, sum(int(tf.size(each)) for each, *_ in of_step)))

    def run(self, number: int) -> dict[str, Any]:
        """Make `number` training steps, and return measurements of each.

        These are loss, seconds, CPU seconds and the number of graphs after it; and the tokens and
        grid cells of all steps.
        """
        lists: dict[str, Any] = {"losses": [], "seconds": [], "cpu_seconds": [], "graphs": []}
        done = lists | {"words": 0, "cells": 0}
        for index in range(number):
            passes, words, cells = self._steps[index % len(self._steps)]
            begin, cpu = time.perf_counter(), time.process_time()
            done["losses"].append(self._tagger.step(passes, words))
            done["seconds"].append(time.perf_counter() - begin)
            done["cpu_seconds"].append(time.process_time() - cpu)
            done["graphs"].append(self._tagger.graphs())
            done["words"] += words
            done["cells"] += cells
        return done


def main(argv: Sequence[str]) -> None:
    """Answer the requests that arrive on the socket, until it is closed."""
    address, threads = argv
    tf.config.threading.set_intra_op_parallelism_threads(int(threads))
    tf.config.threading.set_inter_op_parallelism_threads(int(threads))
    taggers: dict[str, Examples] = {}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        requests, answers = connection.makefile("r"), connection.makefile("w")
        for line in requests:
            try:
                match json.loads(line):
                    case ["prepare", setting]:
                        taggers[setting["name"]] = Examples(setting)
                        done: Any = {"tensorflow": tf.__version__, "import_seconds": IMPORT_SECONDS}
                    case ["run", name, number]:
                        done = taggers[name].run(number)
                answer = {"done": done}
            except UnusableError as error:
                answer = {"refused": str(error)}
            print(json.dumps(answer), file=answers, flush=True)


def _reversed(inputs: Any, lengths: Any) -> Any:
    """Reverse the tokens of each sentence, and leave the padding in its place."""
    return tf.reverse_sequence(inputs, lengths, seq_axis=1, batch_axis=0)


def _cell_before_forget(weight: NDArray[Any]) -> NDArray[Any]:
    entry, forget, cell, exit_ = np.split(weight, 4, axis=-1)
    return np.concatenate([entry, cell, forget, exit_], axis=-1)


def _padded(arrays: dict[str, NDArray[Any]], group: NDArray[Any], length: int | None) -> PaddedPass:
    begins, ends = arrays["offsets"][group], arrays["offsets"][group + 1]
    lengths = ends - begins
    shape = (len(group), length or int(lengths.max()))
    cells = {name: np.zeros(shape, np.int32) for name in ("words", "tags")}
    for name, rows in cells.items():
        for row, begin, end in zip(rows, begins, ends, strict=True):
            row[: end - begin] = arrays[name][begin:end]
    words, tags = (tf.constant(each) for each in cells.values())
    return words, tags, tf.constant(lengths.astype(np.int32))


def _read(file: str) -> dict[str, NDArray[Any]]:
    try:
        with np.load(file) as content:
            arrays = {name: content[name] for name in content.files}
    except (OSError, ValueError) as error:
        raise UnusableError(f"{file} cannot be read ({error}); write an .npz") from None
    for name in _ARRAYS:
        if name not in arrays:
            raise UnusableError(
                f"{file} has no {name} ({_ARRAYS[name]}); write one with all arrays"
            )
    return arrays


def _check(arrays: dict[str, NDArray[Any]], setting: dict[str, Any]) -> None:
    """Raise UnusableError for invalid arrays or settings.

    Within a graph they would fail with no clear message, or go unnoticed.
    """
    if setting["lstm"] not in LSTMS or setting["dtype"] not in ("float32", "float64"):
        raise UnusableError(
            f"lstm {setting['lstm']} in {setting['dtype']} is not there; write one of "
            f"{', '.join(LSTMS)} and float32 or float64"
        )
    lengths = np.diff(arrays["offsets"])
    vocabulary, tags = len(arrays["embedding"]), len(arrays["output_bias"])
    for name, count in (("words", vocabulary), ("tags", tags), ("order", len(lengths))):
        values = arrays[name]
        if not len(values) or values.min() < 0 or values.max() >= count:
            raise UnusableError(f"{name} are not all from 0 to {count - 1}; write such numbers")
    for name, whole in (
        ("pass_sizes", len(arrays["order"])),
        ("step_sizes", len(arrays["pass_sizes"])),
    ):
        if arrays[name].min() < 1 or arrays[name].sum() != whole:
            raise UnusableError(f"{name} are not numbers above 0 with the sum {whole}; write such")
    if len(arrays["words"]) != len(arrays["tags"]) or arrays["offsets"][-1] != len(arrays["words"]):
        raise UnusableError(
            "words, tags and the last of offsets do not agree; write as many of each"
        )
    longest = int(lengths[arrays["order"]].max())
    if lengths.min() < 1 or (setting["length"] or longest) < longest:
        raise UnusableError(
            f"sentences of {lengths.min()} to {longest} words do not fit into 1 to "
            f"{setting['length']}; write a larger length, or none"
        )


if __name__ == "__main__":
    main(sys.argv[1:])

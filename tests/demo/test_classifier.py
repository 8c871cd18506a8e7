"""The demo's classifier against the package that its model comes from."""

import random

import magika
import pytest

from demo.classifier import Classifier, Label
from demo.traffic import real_files

# Small, empty and blank files take other ways than the model.
ODD_CONTENTS = [
    b"",
    b"a",
    b"1234567",
    b"12345678",
    b"\xff\xfe\xfd",
    b" \n\t " * 3,
    b"  short  \n",
    b" " * 5000,
    b"\n" * 4090 + b"import os\n",
    b"import os\n" + b" " * 9000,
    b"x = 1\n" * 4000,
    "Grüße aus 北京\n".encode(),
    bytes(range(256)) * 20,
    random.Random(1).randbytes(6000),
]


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return Classifier()


def classify(classifier: Classifier, content: bytes) -> Label:
    prepared = classifier.preprocess(content)
    if isinstance(prepared, Label):
        return prepared
    return classifier.postprocess(classifier.infer([prepared])[0])


def test_labels_and_scores_are_those_of_magika(classifier: Classifier) -> None:
    contents = real_files() + ODD_CONTENTS
    assert len(contents) > 40
    peer = magika.Magika()
    expected = [peer.identify_bytes(content).prediction for content in contents]
    labels = [classify(classifier, content) for content in contents]
    assert [label.name for label in labels] == [str(each.output.label) for each in expected]
    assert [label.score for label in labels] == pytest.approx(
        [each.score for each in expected], abs=1e-4
    )
    assert len({label.name for label in labels}) > 8


def test_a_member_of_a_batch_gets_its_own_answer(classifier: Classifier) -> None:
    """The model rounds its activations per batch, so scores differ a little from those alone."""
    contents = [
        b"def area(r):\n    return 3.14159 * r * r\n\n" * 20,
        b'{"name": "a", "values": [1, 2, 3], "nested": {"x": null}}\n' * 20,
        b'#include <stdio.h>\nint main(void) { printf("%d", 1); return 0; }\n' * 20,
        b"<!DOCTYPE html><html><head><title>t</title></head><body><p>x</p></body></html>\n" * 20,
        b"SELECT id, name FROM users WHERE age > 30 ORDER BY name;\n" * 20,
        b'#!/bin/bash\nset -e\nfor f in *.txt; do echo "$f"; done\n' * 20,
    ]
    tokens = [each for each in map(classifier.preprocess, contents) if not isinstance(each, Label)]
    alone = [classifier.postprocess(classifier.infer([each])[0]) for each in tokens]
    together = [classifier.postprocess(scores) for scores in classifier.infer(tokens)]
    assert len({label.name for label in alone}) == len(contents)
    assert [label.name for label in together] == [label.name for label in alone]
    assert [label.score for label in together] == pytest.approx(
        [label.score for label in alone], abs=0.02
    )


def test_an_unsure_model_gives_a_generic_label(classifier: Classifier) -> None:
    """Bytes that mean nothing are "unknown", whatever the best guess is."""
    noise = random.Random(7).randbytes(3000)
    assert classify(classifier, noise).name == "unknown"


def test_the_size_of_an_answer_is_that_of_its_scores(classifier: Classifier) -> None:
    tokens = classifier.preprocess(b"def f():\n    return 1\n" * 20)
    assert not isinstance(tokens, Label)
    (scores,) = classifier.infer([tokens])
    assert scores.nbytes == classifier.scores_bytes

"""Content type of a file from its bytes: magika's model, run by our own ONNX Runtime session.

The three steps are apart, because the service times them apart: `preprocess` (bytes -> tokens),
`infer` (a batch of tokens -> scores, the only step that runs the model) and `postprocess`
(scores -> label). Feature extraction and label rules are those of the Python package magika 1.0
(`_extract_features_from_seekable`, `_get_output_label_from_dl_label_and_score`), which carries
the model; a test holds both against each other on real files.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import magika
import numpy as np
import numpy.typing as npt
import onnxruntime

Tokens = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float32]

MODEL_NAME = "standard_v3_3"
EMPTY, TEXT, UNKNOWN = "empty", "txt", "unknown"


class Label(NamedTuple):
    """What a file is: magika's content type label and the model's score, 0..1."""

    name: str
    score: float


@dataclass(frozen=True)
class _ModelConfig:
    begin_size: int
    end_size: int
    block_size: int
    padding: int
    smallest_file: int
    labels: Sequence[str]
    thresholds: dict[str, float]
    default_threshold: float
    overwrites: dict[str, str]

    @classmethod
    def load(cls, path: Path) -> "_ModelConfig":
        raw: dict[str, Any] = json.loads(path.read_text())
        if raw["mid_size"] or raw["use_inputs_at_offsets"]:
            raise ValueError(f"{path}: needs features from the middle of a file, expected none")
        return cls(
            begin_size=raw["beg_size"],
            end_size=raw["end_size"],
            block_size=raw["block_size"],
            padding=raw["padding_token"],
            smallest_file=raw["min_file_size_for_dl"],
            labels=raw["target_labels_space"],
            thresholds=raw["thresholds"],
            default_threshold=raw["medium_confidence_threshold"],
            overwrites=raw["overwrite_map"],
        )


class Classifier:
    """magika's model behind a session of one CPU thread."""

    def __init__(self) -> None:
        package = Path(magika.__file__).parent
        model = package / "models" / MODEL_NAME
        self.model_bytes = (model / "model.onnx").stat().st_size
        self._config = _ModelConfig.load(model / "config.min.json")
        kinds = json.loads((package / "config" / "content_types_kb.min.json").read_text())
        self.scores_bytes = 4 * len(self._config.labels)  # of one answer, float32
        self._is_text = {name: bool(kind["is_text"]) for name, kind in kinds.items()}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the demo leaves the other cores to its neighbours
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(model / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )

    def preprocess(self, content: bytes) -> Tokens | Label:
        """Return the model's input, shape (2048,), or the label of a file too small for it."""
        config = self._config
        if not content:
            return Label(EMPTY, 1.0)
        if len(content) < config.smallest_file:
            return self._label_of_few_bytes(content)
        tokens = np.full(config.begin_size + config.end_size, config.padding, dtype=np.int32)
        begin = content[: config.block_size].lstrip()[: config.begin_size]
        tokens[: len(begin)] = np.frombuffer(begin, dtype=np.uint8)
        end = content[-config.block_size :].rstrip()[-config.end_size :]
        if end:
            tokens[-len(end) :] = np.frombuffer(end, dtype=np.uint8)
        if tokens[config.smallest_file - 1] == config.padding:
            return self._label_of_few_bytes(content[: config.block_size])
        return tokens

    def infer(self, batch: Sequence[Tokens]) -> list[Scores]:
        """Run the model once over the batch; return each member's scores, shape (214,)."""
        (scores,) = self._session.run(["target_label"], {"bytes": np.stack(batch)})
        return list(np.asarray(scores))

    def postprocess(self, scores: Scores) -> Label:
        """Return the label the scores stand for; an unsure model gives "txt" or "unknown"."""
        config = self._config
        best = int(scores.argmax())
        guess, score = config.labels[best], float(scores[best])
        name = config.overwrites.get(guess, guess)
        if score < config.thresholds.get(guess, config.default_threshold):
            name = TEXT if self._is_text[name] else UNKNOWN
        return Label(name, score)

    @staticmethod
    def _label_of_few_bytes(content: bytes) -> Label:
        try:
            content.decode("utf-8")
        except UnicodeDecodeError:
            return Label(UNKNOWN, 1.0)
        return Label(TEXT, 1.0)

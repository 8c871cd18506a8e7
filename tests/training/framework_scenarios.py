"""The same small training under the Trainers of Lightning and of transformers."""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import get_total_norm
from torch.utils.data import DataLoader

from tests.training.scenarios import dataset, gathered, mse, own_batches, page, sgd, small_model

warnings.simplefilter("ignore")
CHECKPOINT_SECONDS = 0.05
EVALUATION_SECONDS = 0.4


def expected_of(lr: float, accumulate: int, epochs: int, batch_size: int) -> dict[str, Any]:
    """The same training by hand."""
    model = small_model()
    optimizer = sgd(model, lr)
    losses, norm = [], 0.0
    for _ in range(epochs):
        for index, batch in enumerate(DataLoader(dataset(), batch_size=batch_size), 1):
            loss = mse(model, batch)
            (loss / accumulate).backward()
            losses.append(loss.item())
            if index % accumulate == 0:
                norm = get_total_norm([each.grad for each in model.parameters()]).item()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    return {"losses": losses, "norm": norm}


def lightning(scaled: bool = False) -> dict[str, Any]:
    """Three epochs of eight batches, two batches a step; a validation and a checkpoint an epoch."""
    import pytorch_lightning
    from pytorch_lightning.callbacks import ModelCheckpoint
    from pytorch_lightning.plugins import MixedPrecision

    from tailwatch_tracing.training.lightning import TrainingMonitorCallback

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    pages: list[str] = []
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = small_model()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = mse(self.model, batch)
            is_third_step = self.current_epoch == 0 and index == 5
            return loss * float("inf") if scaled and is_third_step else loss

        def validation_step(self, batch: Any, index: int) -> None:
            time.sleep(EVALUATION_SECONDS)

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            time.sleep(CHECKPOINT_SECONDS)

        def on_train_epoch_end(self) -> None:
            pages.append(page())

        def configure_optimizers(self) -> Any:
            return sgd(self.model, 0.001)

    with tempfile.TemporaryDirectory() as directory:
        watch = TrainingMonitorCallback("lit", every_steps=1)
        trainer = pytorch_lightning.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=3,
            accumulate_grad_batches=2,
            plugins=[MixedPrecision("16-mixed", "cpu", scaler)] if scaled else None,
            gradient_clip_val=1.0,
            callbacks=[watch, ModelCheckpoint(directory, save_top_k=-1)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=1,
        )
        loader = DataLoader(dataset(), batch_size=8)
        begin = time.perf_counter()
        trainer.fit(Module(), loader, DataLoader(dataset(), batch_size=64))
        seconds = time.perf_counter() - begin
        checkpoints = len(list(Path(directory).glob("*.ckpt")))
    return {
        "page": pages[-1],
        "after": page(),
        "seconds": seconds,
        "checkpoints": checkpoints,
        "released": watch.monitor is None and "save_checkpoint" not in vars(trainer),
        **expected_of(0.001, 2, 3, 8),
    }


def lightning_ddp() -> dict[str, Any]:
    """One epoch of two ranks, with DDP watched."""
    import pytorch_lightning

    from tailwatch_tracing.training.lightning import TrainingMonitorCallback

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    pages: list[str] = []
    model = small_model()
    loader = own_batches()
    *_, last = loader
    alone = torch.autograd.grad(mse(model, last), list(model.parameters()))
    averaged = [sum(gathered(each)) / 2 for each in alone]

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = small_model()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return mse(self.model, batch)

        def on_train_epoch_end(self) -> None:
            pages.append(page())

        def configure_optimizers(self) -> Any:
            return sgd(self.model, 0.0)

    trainer = pytorch_lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        use_distributed_sampler=False,
        callbacks=[TrainingMonitorCallback("lit", every_steps=1, watch_communication=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Module(), loader)
    return {
        "page": pages[-1],
        "local": get_total_norm(alone).item(),
        "reduced": get_total_norm(averaged).item(),
    }


def transformers(accumulate: int = 2) -> dict[str, Any]:
    """Three epochs; a checkpoint an epoch, and an evaluation every four steps."""
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.utils import logging as hf_logging

    from tailwatch_tracing.training.transformers import TrainingMonitorCallback

    hf_logging.set_verbosity_error()
    pages: list[str] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = small_model()
            self.is_evaluated = False

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            if not self.training:
                time.sleep(EVALUATION_SECONDS)
            outputs = self.model(x)
            return {"loss": nn.functional.mse_loss(outputs, labels), "logits": outputs}

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(CHECKPOINT_SECONDS)
            return super().state_dict(*args, **kwargs)

    class Last(TrainerCallback):
        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            pages.append(page())

    samples = [{"x": x, "labels": y} for x, y in dataset()]
    watch = TrainingMonitorCallback("hf", every_steps=1)
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(
            model=Model(),
            args=TrainingArguments(
                directory,
                num_train_epochs=3,
                per_device_train_batch_size=8,
                gradient_accumulation_steps=accumulate,
                per_device_eval_batch_size=64,
                learning_rate=0.001,
                lr_scheduler_type="constant",
                optim="sgd",
                max_grad_norm=1.0,
                logging_steps=1,
                save_strategy="epoch",
                eval_strategy="steps",
                eval_steps=4,
                use_cpu=True,
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=samples,
            eval_dataset=samples,
            callbacks=[watch, Last()],
        )
        begin = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - begin
    return {
        "page": pages[-1],
        "after": page(),
        "logs": [each for each in trainer.state.log_history if "loss" in each],
        "steps": trainer.state.global_step,
        "seconds": seconds,
        "released": watch.monitor is None,
    }

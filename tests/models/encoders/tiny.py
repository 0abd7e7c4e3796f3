"""Tiny random encoders, written by transformers, which is also the oracle of their states."""

import os
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForSequenceClassification,
    ModernBertModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

VOCABULARY = 199
CONTEXT_TOKENS = 96
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 104,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT_TOKENS,
    "attn_implementation": "eager",
}
PADDED_ROWS = {"max_position_embeddings": CONTEXT_TOKENS + 2, "pad_token_id": 1}
MODERN = {
    "local_attention": 12,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "cls_token_id": 2,
    "eos_token_id": 3,
    "sep_token_id": 3,
}


@dataclass(frozen=True)
class EncoderVariant:
    config_class: type
    model_class: type
    config: dict[str, object] = field(default_factory=dict)


MODELS = {
    "bert": EncoderVariant(BertConfig, BertModel),
    # No whole registers of features or head dims.
    "bert_odd": EncoderVariant(BertConfig, BertModel, {"hidden_size": 60, "intermediate_size": 90}),
    "bert_words": EncoderVariant(BertConfig, BertForMaskedLM),
    "roberta": EncoderVariant(RobertaConfig, RobertaModel, PADDED_ROWS),
    "roberta_words": EncoderVariant(RobertaConfig, RobertaForMaskedLM, PADDED_ROWS),
    "xlm_roberta": EncoderVariant(XLMRobertaConfig, XLMRobertaModel, PADDED_ROWS),
    "modernbert": EncoderVariant(ModernBertConfig, ModernBertModel, MODERN),
    "modernbert_biased": EncoderVariant(
        ModernBertConfig,
        ModernBertModel,
        {**MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True},
    ),
    "modernbert_long": EncoderVariant(
        ModernBertConfig, ModernBertModel, {**MODERN, "max_position_embeddings": 600}
    ),
    "modernbert_words": EncoderVariant(ModernBertConfig, ModernBertForMaskedLM, MODERN),
}
CLASSIFIERS = {
    "bert_labels": EncoderVariant(
        BertConfig,
        BertForSequenceClassification,
        {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "problem_type": "multi_label_classification"},
    ),
    "roberta_labels": EncoderVariant(RobertaConfig, RobertaForSequenceClassification, PADDED_ROWS),
    "xlm_roberta_score": EncoderVariant(
        XLMRobertaConfig, XLMRobertaForSequenceClassification, {**PADDED_ROWS, "num_labels": 1}
    ),
    "modernbert_labels": EncoderVariant(
        ModernBertConfig, ModernBertForSequenceClassification, {**MODERN, "num_labels": 4}
    ),
    "modernbert_mean": EncoderVariant(
        ModernBertConfig,
        ModernBertForSequenceClassification,
        {**MODERN, "classifier_pooling": "mean", "classifier_bias": True, "norm_bias": True},
    ),
}


def build(variant: EncoderVariant, directory: Path) -> PreTrainedModel:
    """Writes the checkpoint and returns the model that it holds."""
    torch.manual_seed(len(directory.name))
    model = variant.model_class(variant.config_class(**{**SIZES, **variant.config})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_random_like(name, parameter))
    model.save_pretrained(directory)
    return model


def _random_like(name: str, parameter: torch.Tensor) -> torch.Tensor:
    # Norms unlike one and biases unlike zero: a forgotten one must show.
    noise = torch.randn_like(parameter)
    if parameter.dim() == 1:
        return 1 + 0.3 * noise if name.lower().endswith("norm.weight") else 0.3 * noise
    return noise * 1.5 / parameter.shape[-1] ** 0.5

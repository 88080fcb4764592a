from .attention import KernelAttention, SoftmaxAttention
from .build import sequence_transformer, text_transformer, vision_transformer
from .encoder import Encoder, without_attention
from .functional import kernel_attention, rbf_matrix
from .objective import PenalisedLoss, categorical_log_likelihood, penalised_loss
from .outputs import AttentionOutput, TransformerOutput
from .pooling import Pooling
from .prediction import Predictor, active_dropout, predict_probabilities
from .protocol import AttentionModule, TokenMap
from .sampling import repeat_samples
from .sequence import SequenceTransformer
from .spec import (
    AttentionConfig,
    BlockContext,
    KernelConfig,
    Preset,
    SoftmaxConfig,
    TransformerConfig,
)
from .text import TextTransformer
from .vision import VisionTransformer
from .warm_start import copy_kernel_weights

__all__ = [
    "AttentionConfig",
    "AttentionModule",
    "AttentionOutput",
    "BlockContext",
    "Encoder",
    "KernelAttention",
    "KernelConfig",
    "PenalisedLoss",
    "Pooling",
    "Predictor",
    "Preset",
    "SequenceTransformer",
    "SoftmaxAttention",
    "SoftmaxConfig",
    "TextTransformer",
    "TokenMap",
    "TransformerConfig",
    "TransformerOutput",
    "VisionTransformer",
    "active_dropout",
    "categorical_log_likelihood",
    "copy_kernel_weights",
    "kernel_attention",
    "penalised_loss",
    "predict_probabilities",
    "rbf_matrix",
    "repeat_samples",
    "sequence_transformer",
    "text_transformer",
    "vision_transformer",
    "without_attention",
]

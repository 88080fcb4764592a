from .adapters import deviations, penalty, remove_attention, replace_attention
from .attention import KernelAttention, SoftmaxAttention
from .build import sequence_transformer, text_transformer, vision_transformer
from .drawing import held_functions, sample_predictions
from .encoder import Encoder, without_attention
from .exchange import collect_penalties, exchange_attention
from .fine_tuning import FineTuned, fine_tune
from .functional import kernel_attention, rbf_matrix
from .layouts import Layout
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
    "FineTuned",
    "KernelAttention",
    "KernelConfig",
    "Layout",
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
    "collect_penalties",
    "copy_kernel_weights",
    "deviations",
    "exchange_attention",
    "fine_tune",
    "held_functions",
    "kernel_attention",
    "penalty",
    "predict_probabilities",
    "rbf_matrix",
    "remove_attention",
    "repeat_samples",
    "replace_attention",
    "sample_predictions",
    "sequence_transformer",
    "text_transformer",
    "vision_transformer",
    "without_attention",
]

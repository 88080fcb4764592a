from .adapters import deviations, penalty, remove_attention, replace_attention
from .attention import KernelAttention, SoftmaxAttention
from .build import sequence_transformer, text_transformer, vision_transformer
from .causal import CausalAttentionModule, CausalKernelAttention, CausalSoftmaxAttention
from .decoder import CausalTransformer, TokenMetrics, bits_per_token, evaluate_tokens
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
    "CausalAttentionModule",
    "CausalKernelAttention",
    "CausalSoftmaxAttention",
    "CausalTransformer",
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
    "TokenMetrics",
    "TransformerConfig",
    "TransformerOutput",
    "VisionTransformer",
    "active_dropout",
    "bits_per_token",
    "collect_penalties",
    "copy_kernel_weights",
    "deviations",
    "evaluate_tokens",
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

from .attention import KernelAttention, SoftmaxAttention
from .build import attention_factory, text_transformer, vision_transformer
from .encoder import Encoder
from .functional import kernel_attention, rbf_matrix
from .outputs import AttentionOutput, TransformerOutput
from .pooling import Pooling
from .prediction import predict_probabilities
from .protocol import AttentionModule, TokenMap
from .sampling import repeat_samples
from .sequence import SequenceTransformer
from .spec import AttentionConfig, Place, Preset, TransformerConfig
from .text import TextTransformer
from .vision import VisionTransformer

__all__ = [
    "AttentionConfig",
    "AttentionModule",
    "AttentionOutput",
    "Encoder",
    "KernelAttention",
    "Place",
    "Pooling",
    "Preset",
    "SequenceTransformer",
    "SoftmaxAttention",
    "TextTransformer",
    "TokenMap",
    "TransformerConfig",
    "TransformerOutput",
    "VisionTransformer",
    "attention_factory",
    "kernel_attention",
    "predict_probabilities",
    "rbf_matrix",
    "repeat_samples",
    "text_transformer",
    "vision_transformer",
]

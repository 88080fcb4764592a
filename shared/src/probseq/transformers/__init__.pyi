from .attention import KernelAttention, SoftmaxAttention
from .config import TransformerConfig
from .encoder import Encoder
from .functional import kernel_attention, rbf_matrix
from .outputs import AttentionOutput, TransformerOutput
from .pooling import Pooling
from .prediction import predict_probabilities
from .protocol import AttentionModule, TokenMap
from .sampling import repeat_samples
from .sequence import SequenceTransformer
from .text import TextTransformer
from .vision import VisionTransformer

__all__ = [
    "AttentionModule",
    "AttentionOutput",
    "Encoder",
    "KernelAttention",
    "Pooling",
    "SequenceTransformer",
    "SoftmaxAttention",
    "TextTransformer",
    "TokenMap",
    "TransformerConfig",
    "TransformerOutput",
    "VisionTransformer",
    "kernel_attention",
    "predict_probabilities",
    "rbf_matrix",
    "repeat_samples",
]

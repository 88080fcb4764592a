"""Transformer backbones that take any attention module of the common protocol."""

from probseq.transformers.attention import KernelAttention, SoftmaxAttention
from probseq.transformers.config import TransformerConfig
from probseq.transformers.encoder import Encoder
from probseq.transformers.functional import kernel_attention, rbf_matrix
from probseq.transformers.outputs import AttentionOutput, TransformerOutput
from probseq.transformers.pooling import Pooling
from probseq.transformers.prediction import predict_probabilities
from probseq.transformers.protocol import AttentionModule, TokenMap
from probseq.transformers.sampling import repeat_samples
from probseq.transformers.sequence import SequenceTransformer
from probseq.transformers.text import TextTransformer
from probseq.transformers.vision import VisionTransformer

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

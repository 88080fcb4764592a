"""Settings of the transformer backbone."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar

from probseq.checks import check_choice, check_counts, check_rates
from probseq.transformers.pooling import PoolingName

NormPlacement = Literal["pre", "post"]

# Not typing.Self: beartype, which checks signatures in the tests, knows it in whole classes only.
ConfigT = TypeVar("ConfigT", bound="TransformerConfig")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Settings of the backbone; the attention modules have their own.

    Attributes:
        depth: number of blocks L.
        dim: token width.
        num_heads: heads H; must divide ``dim``.
        hidden_dim: width of the MLP between attention layers.
        dropout: rate after embeddings, attention and in the MLP.
        pooling: how tokens become one vector, see :class:`~probseq.transformers.pooling.Pooling`.
        norm: layer norm before each sub-layer (``"pre"``) or after each residual sum (``"post"``).
        shared_norm: one LayerNorm for all blocks (SGPA's code) instead of two a block.
        final_norm: a LayerNorm before pooling.

    Raises:
        ValueError: a number is out of range, ``num_heads`` does not divide ``dim``, or a name is
            unknown.
    """

    depth: int
    dim: int
    num_heads: int
    hidden_dim: int
    dropout: float = 0.1
    pooling: PoolingName = "mean"
    norm: NormPlacement = "pre"
    shared_norm: bool = False
    final_norm: bool = True

    def __post_init__(self) -> None:
        check_counts(
            depth=self.depth, dim=self.dim, num_heads=self.num_heads, hidden_dim=self.hidden_dim
        )
        if self.dim % self.num_heads:
            raise ValueError(
                f"num_heads must divide dim={self.dim}, got num_heads={self.num_heads}"
            )
        check_rates(dropout=self.dropout)
        check_choice("pooling", self.pooling, PoolingName)
        check_choice("norm", self.norm, NormPlacement)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a plain dictionary, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls: type[ConfigT], settings: dict[str, Any]) -> ConfigT:
        """Build from a dictionary.

        Raises:
            ValueError: a key is unknown; the message lists the known ones.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(settings.keys() - known):
            raise ValueError(f"unknown settings {unknown}; known are {sorted(known)}")
        return cls(**settings)

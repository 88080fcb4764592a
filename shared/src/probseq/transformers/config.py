"""Settings of the transformer backbone."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar, get_args

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
        for name in ("depth", "dim", "num_heads", "hidden_dim"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.dim % self.num_heads:
            raise ValueError(
                f"num_heads must divide dim={self.dim}, got num_heads={self.num_heads}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if self.pooling not in get_args(PoolingName):
            raise ValueError(
                f"pooling must be one of {get_args(PoolingName)}, got {self.pooling!r}"
            )
        if self.norm not in get_args(NormPlacement):
            raise ValueError(f"norm must be one of {get_args(NormPlacement)}, got {self.norm!r}")

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

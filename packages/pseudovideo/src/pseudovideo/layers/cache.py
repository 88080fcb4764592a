"""Keys and values of the tokens seen so far, in memory that is laid out once."""

from jaxtyping import Float
from torch import Tensor


class KeyValueCache:
    """Keys and values of one attention layer while tokens are drawn one after the other.

    Args:
        batch_size: sequences that are drawn at once.
        num_heads: heads H of the layer.
        max_length: tokens N that fit.
        head_dim: width of a head.
        like: a tensor whose device and dtype the cache takes.

    Attributes:
        length: tokens seen so far.
    """

    def __init__(
        self, batch_size: int, num_heads: int, max_length: int, head_dim: int, *, like: Tensor
    ) -> None:
        shape = (batch_size, num_heads, max_length, head_dim)
        self._keys = like.new_empty(shape)
        self._values = like.new_empty(shape)
        self.length = 0

    def append(
        self, keys: Float[Tensor, "b h m c"], values: Float[Tensor, "b h m c"]
    ) -> tuple[Float[Tensor, "b h n c"], Float[Tensor, "b h n c"]]:
        """Store the keys and values of the next tokens.

        Args:
            keys: of the m new tokens.
            values: of the m new tokens.

        Returns:
            Those of all tokens so far: views of the cache, sliced to its length.

        Raises:
            ValueError: the cache is full.
        """
        start, end = self.length, self.length + keys.shape[-2]
        if end > self._keys.shape[-2]:
            raise ValueError(f"the cache holds {self._keys.shape[-2]} tokens, got token {end}")
        self._keys[:, :, start:end] = keys
        self._values[:, :, start:end] = values
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

"""Which steps of a diffusion process are taken when it is walked in fewer (Nichol & Dhariwal)."""

from itertools import pairwise

from probseq.checks import check_counts


def spaced_steps(num_steps: int, count: int) -> tuple[int, ...]:
    """Return steps of 0..S−1, as evenly spaced as whole numbers allow, from the first to the last.

    Args:
        num_steps: S.
        count: how many; one is step 0.

    Raises:
        ValueError: `count` is below 1, above S, or no whole number.
    """
    check_counts(count=count)
    if count > num_steps:
        raise ValueError(f"count must be at most the {num_steps} steps, got {count}")
    stride = (num_steps - 1) / (count - 1) if count > 1 else 0.0
    steps: list[int] = []
    place = 0.0
    for _ in range(count):
        steps.append(round(place))
        # Added up, not multiplied: on a tie the sum decides as improved DDPM's does.
        place += stride
    return tuple(steps)


def check_timesteps(timesteps: tuple[int, ...], count: int, original_steps: int) -> None:
    """Refuse numbers that are no choice of steps.

    Args:
        timesteps: the original number of each step.
        count: how many there must be.
        original_steps: of the original process.

    Raises:
        ValueError: they are not `count` ascending numbers below `original_steps`.
    """
    ascending = all(one < other for one, other in pairwise(timesteps))
    inside = timesteps[0] >= 0 and timesteps[-1] < original_steps if timesteps else False
    if len(timesteps) != count or not (ascending and inside):
        raise ValueError(
            f"timesteps must be {count} ascending numbers of 0..{original_steps - 1}, "
            f"got {timesteps}"
        )

"""The limit of open files, which mlx_lm sets for the whole process when it is imported."""

import resource

_FILES_OF_MLX_LM = 4096  # and its import fails where that is not allowed


def bear_few_files() -> None:
    """Before the first import of mlx_lm, in each process that imports it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= _FILES_OF_MLX_LM:
        return
    set_limit = resource.setrlimit

    def set_if_allowed(which: int, limits: tuple[int, int]) -> None:
        if which != resource.RLIMIT_NOFILE or limits[1] <= hard:
            set_limit(which, limits)

    resource.setrlimit = set_if_allowed

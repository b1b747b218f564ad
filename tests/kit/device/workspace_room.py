"""How much room a workspace has left."""

import torch


def room_of(workspace):
    """Bytes of the largest tensor that the workspace can give; all free bytes if they are one range."""
    least, most = 0, 1 << 32
    while most - least > 1:
        middle = (least + most) // 2
        if workspace.try_empty((middle,), torch.uint8) is None:
            most = middle
        else:
            least = middle
    return least

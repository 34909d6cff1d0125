"""What both the stand-in and the real torch are looked at for: the blocks that came, and what must be as it was."""


def paths(tracer):
    """Paths of all blocks in the order in which they were opened."""
    found = sorted(tracer.session().blocks, key=lambda block: block.block_id)
    return [" / ".join(block.path) for block in found]


def snapshot(torch):
    """Everything the integration may touch."""
    module = getattr(torch.nn, "modules", None)
    hooks = [
        dict(value)
        for name, value in sorted(vars(module.module).items() if module else ())
        if name.startswith("_global_") and isinstance(value, dict)
    ]
    return [
        torch.nn.Module.__dict__["__call__"],
        torch.autograd.backward,
        torch.autograd.grad,
        torch.autograd.profiler.record_function.__enter__,
        torch.autograd.profiler.record_function.__exit__,
        torch.cuda.nvtx.range_push,
        torch.cuda.nvtx.range_pop,
        torch.compile,
        hooks,
    ]

"""Different work has different names, and equal names are only compared where they mean equal work."""

import pytest
from support.wgpu_programs import SHADER

from gpusense._records.records import GpuKernel
from gpusense.analysis.anomalies import anomalies
from gpusense.session import Session


def pass_record(start: int, length: int, source: str, grid=(1, 1, 1)) -> GpuKernel:
    return GpuKernel("x", start, start + length, backend="wgpu", grid=grid, attributes={"label_source": source})


@pytest.mark.parametrize(
    ("source", "grid", "found"),
    [("entry_point", (1, 1, 1), 1), ("entry_point", None, 0), ("line", (1, 1, 1), 0), ("pass", (1, 1, 1), 0)],
)
def test_only_passes_of_one_pipeline_and_size_are_compared(source: str, grid, found: int) -> None:
    lengths = [100_000 + 100 * number for number in range(20)]
    lengths[12] = 9_000_000
    records = [pass_record(number * 10_000_000, length, source, grid) for number, length in enumerate(lengths)]
    assert len(anomalies(Session(records=records))) == found


class Maker:
    """A class whose objects make pipelines, as an effect of a library does."""

    def __init__(self, work, rounds: int, entry: str) -> None:
        self.work = work
        self.pipeline = self.make(rounds, entry)

    def make(self, rounds: int, entry: str):
        module = self.work.gpu.create_shader_module(code=SHADER.replace("churn", entry))
        stage = {"module": module, "entry_point": entry, "constants": {"rounds": rounds}}
        return self.work.gpu.create_compute_pipeline(layout="auto", compute=stage)

    def run(self) -> None:
        encoder = self.work.gpu.create_command_encoder()
        started = encoder.begin_compute_pass()
        started.set_pipeline(self.pipeline)
        started.end()
        self.work.gpu.queue.submit([encoder.finish()])


class Blur(Maker):
    pass


def names(recording) -> list[str]:
    return [kernel.name for kernel in recording.of(GpuKernel)]


def test_an_entry_point_that_says_nothing_is_told_by_pipeline_and_class(recording, programs) -> None:
    work = programs.Compute(programs.device())
    made = [Maker(work, 1, "main"), Maker(work, 2, "main"), Blur(work, 1, "main")]
    for one in (*made, *made):
        one.run()
    first, second, third, *again = names(recording)
    assert again == [first, second, third]
    assert len({first, second, third}) == 3
    assert [name.partition("[")[2].split()[0] for name in (first, second, third)] == ["Maker", "Maker", "Blur"]
    assert first.split()[2] == third.split()[2]  # the same shader and constants


def test_an_entry_point_that_says_something_stays_short_while_it_is_one_pipelines(recording, programs) -> None:
    work = programs.Compute(programs.device())
    for one in (Maker(work, 1, "churned"), Maker(work, 1, "churned"), Maker(work, 2, "churned")):
        one.run()
    first, same, other = names(recording)
    assert first == same == "churned"
    assert other.startswith("churned [")


def test_render_passes_of_a_library_are_told_by_function_and_pipeline(recording, programs) -> None:
    """Not by the line, which is another one in its next version."""
    gpu = programs.device()
    usage = programs.wgpu.TextureUsage.RENDER_ATTACHMENT
    view = gpu.create_texture(size=(4, 4, 1), format="rgba8unorm", usage=usage).create_view()
    library = compile(
        "class Effect:\n"
        "    def make(self, gpu, code):\n"
        "        module = gpu.create_shader_module(code=code)\n"
        "        target = {'module': module, 'entry_point': 'paint', 'targets': [{'format': 'rgba8unorm'}]}\n"
        "        vertex = {'module': module, 'entry_point': 'corner', 'buffers': []}\n"
        "        self.pipeline = gpu.create_render_pipeline(layout='auto', vertex=vertex, fragment=target,\n"
        "            primitive={'topology': 'triangle-list'})\n"
        "    def render(self, encoder, view):\n"
        "        target = {'view': view, 'load_op': 'clear', 'store_op': 'store', 'clear_value': (0, 0, 0, 1)}\n"
        "        work = encoder.begin_render_pass(color_attachments=[target])\n"
        "        work.set_pipeline(self.pipeline)\n"
        "        work.draw(3)\n"
        "        work.end()\n"
        "class Bloom(Effect): pass\n",
        "/x/lib/python3/site-packages/effects/passes.py",
        "exec",
    )
    exec(library, found := {})
    effects = [found["Effect"](), found["Bloom"]()]
    for effect, code in zip(effects, (programs.TRIANGLE, programs.TRIANGLE.replace("0.2", "0.3")), strict=True):
        effect.make(gpu, code)
    encoder = gpu.create_command_encoder()
    for effect in (*effects, *effects):
        effect.render(encoder, view)
    gpu.queue.submit([encoder.finish()])
    one, other, *again = names(recording)
    assert again == [one, other]
    assert one.startswith(("render@Effect.render [Effect ", "render@render [Effect "))
    assert other.startswith(("render@Effect.render [Bloom ", "render@render [Bloom "))
    assert {kernel.attributes["line"] for kernel in recording.of(GpuKernel)} == {"passes.py:10"}
    assert {kernel.label for kernel in recording.of(GpuKernel)} == {None}

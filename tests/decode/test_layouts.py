"""The offset tables against C structs compiled here; the vendor's own headers are compared in tests/backends."""

import struct
import subprocess

import pytest

from gpusense._decode import layouts

# Members in order, written from the documented record contents: every one, so that the compiler places those we read.
# A line "since X.Y" ends the record as older releases have it.
STRUCTS = {
    "kernel": (
        layouts.KERNEL_LAYOUT,
        """u32 kind; u8 cache_config; u8 shared_config; u16 registers; u32 cache_requested; u32 cache_executed;
        u64 start; u64 end; u64 completed; u32 device; u32 context; u32 stream; i32 grid_x; i32 grid_y; i32 grid_z;
        i32 block_x; i32 block_y; i32 block_z; i32 static_shared; i32 dynamic_shared; u32 local_per_thread;
        u32 local_total; u32 correlation; i64 grid_id; char *name; void *reserved; u64 queued; u64 submitted;
        u8 launch_type; u8 carveout_asked; u8 carveout; u8 pad; u32 shared_executed; u64 graph_node; u32 shared_limit;
        u32 graph; void *access_policy; u32 channel; u32 channel_type;
        since 11.8
        u32 cluster_x; u32 cluster_y; u32 cluster_z; u32 cluster_policy; u64 local_total_2;
        since 12.0
        u32 cluster_potential; u32 cluster_active;
        since 13.0
        u8 device_launched; u8 pad_2[7];
        since 13.1
        i32 priority; u32 pad_3;
        since 13.3
        u32 execution_model; u32 pad_4;
        since 13.4
        u32 source_graph; u32 pad_5; u64 source_graph_node;""",
    ),
    "memcpy": (
        layouts.MEMCPY_LAYOUT,
        """u32 kind; u8 copy_kind; u8 source_kind; u8 destination_kind; u8 flags; u64 bytes; u64 start; u64 end;
        u32 device; u32 context; u32 stream; u32 correlation; u32 runtime_correlation; u32 pad; void *reserved;
        u64 graph_node; u32 graph; u32 channel; u32 channel_type; u32 pad_2;
        since 12.8
        u64 copy_count;
        since 13.4
        u32 source_graph; u32 pad_3; u64 source_graph_node;""",
    ),
    "memcpy2": (
        layouts.MEMCPY2_LAYOUT,
        """u32 kind; u8 copy_kind; u8 source_kind; u8 destination_kind; u8 flags; u64 bytes; u64 start; u64 end;
        u32 device; u32 context; u32 stream; u32 source_device; u32 source_context; u32 destination_device;
        u32 destination_context; u32 correlation; void *reserved; u64 graph_node; u32 graph; u32 channel;
        u32 channel_type;""",
    ),
    "memset": (
        layouts.MEMSET_LAYOUT,
        """u32 kind; u32 value; u64 bytes; u64 start; u64 end; u32 device; u32 context; u32 stream; u32 correlation;
        u16 flags; u16 memory_kind; u32 pad; void *reserved; u64 graph_node; u32 graph; u32 channel; u32 channel_type;
        u32 pad_2;
        since 13.4
        u32 source_graph; u32 pad_3; u64 source_graph_node;""",
    ),
    "synchronization": (
        layouts.SYNCHRONIZATION_LAYOUT,
        """u32 kind; u32 type; u64 start; u64 end; u32 correlation; u32 context; u32 stream; u32 event;
        since 12.8
        u64 event_sync; u32 result; u32 pad;""",
    ),
    "memory2": (
        layouts.MEMORY2_LAYOUT,
        """u32 kind; u32 operation; u32 memory_kind; u32 correlation; u64 address; u64 bytes; u64 time; u64 pc;
        u32 process; u32 device; u32 context; u32 stream; char *name; u32 is_async; u32 pad; u32 pool_type; u32 pad_2;
        u64 pool_address; u64 pool_threshold; u64 pool_size; u64 pool_used;
        since 12.6
        char *source;""",
    ),
    "external_correlation": (
        layouts.EXTERNAL_CORRELATION_LAYOUT,
        "u32 kind; u32 external_kind; u64 external_id; u32 correlation; u32 reserved;",
    ),
    "api": (
        layouts.API_LAYOUT,
        "u32 kind; u32 cbid; u64 start; u64 end; u32 process; u32 thread; u32 correlation; u32 result;",
    ),
    "overhead": (
        layouts.OVERHEAD_LAYOUT,
        """u32 kind; u32 overhead_kind; u32 object_kind; u32 process; u32 thread; u32 third_id; u64 start; u64 end;
        since 12.3
        u32 correlation; u32 reserved;
        since 12.4
        void *data;""",
    ),
    "unified_memory_counter": (
        layouts.UNIFIED_MEMORY_COUNTER_LAYOUT,
        """u32 kind; u32 counter; u64 value; u64 start; u64 end; u64 address; u32 source_device; u32 destination_device;
        u32 stream; u32 process; u32 flags; u32 pad;
        since 12.8
        u64 processors[5];""",
    ),
    "device": (
        layouts.DEVICE_LAYOUT,
        """u32 kind; u32 flags; u64 memory_bandwidth_kb_per_s; u64 memory_bytes; u32 constant_bytes; u32 cache_bytes;
        u32 warp_size; u32 core_clock_khz; u32 copy_engines; u32 sm_count; u32 max_ipc; u32 warps_per_sm;
        u32 blocks_per_sm; u32 shared_per_sm; u32 registers_per_sm; u32 registers_per_block; u32 shared_per_block;
        u32 threads_per_block; u32 block_limit[3]; u32 grid_limit[3]; u32 capability_major; u32 capability_minor;
        u32 id; u32 ecc; char uuid[16]; char *name; u8 is_visible; u8 is_mig; u8 pad[6]; u32 gpu_instance;
        u32 compute_instance; char mig_uuid[16];
        since 12.2
        u32 is_numa; u32 numa_id;
        since 13.2
        u32 tpc_count; u32 pad_2;""",
    ),
    "context": (
        layouts.CONTEXT_LAYOUT,
        """u32 kind; u32 context; u32 device; u16 api; u16 null_stream;
        since 12.4
        u32 parent; u8 is_green; u8 pad; u16 sm_count;
        since 12.5
        u32 interop; u32 pad_2;
        since 13.1
        u64 process;""",
    ),
}

HEAD = """
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64; typedef int32_t i32;
typedef int64_t i64;
#define SIZE(member) sizeof(((record *)0)->member)
"""


def versions(text: str) -> list[tuple[str, str]]:
    """(release, members) of a record as each release that lengthened it has it."""
    found, members, release = [], "", "11.7"
    for part in [*text.split("since "), ""]:
        if members:
            found.append((release, members))
        if members and part:
            release, _, part = part.partition("\n")
        members += part
    return found[: text.count("since ") + 1]


@pytest.mark.parametrize("name", STRUCTS)
def test_offsets_and_sizes_equal_what_a_compiler_makes_of_the_record(name, compiler, tmp_path):
    layout, text = STRUCTS[name]
    shapes = versions(text)
    assert [release for release, _ in shapes] == [release for release, _ in layout.sizes]
    body = HEAD
    for number, (_, members) in enumerate(shapes):
        body += f"typedef struct __attribute__((packed, aligned(8))) {{ {members} }} shape_{number};\n"
    body += f"typedef shape_{len(shapes) - 1} record;\nint main(void) {{\n"
    for number in range(len(shapes)):
        body += f'printf("%zu\\n", sizeof(shape_{number}));\n'
    for field in layout.fields:
        body += f'printf("%zu %zu\\n", offsetof(record, {field.name}), SIZE({field.name}));\n'
    source, program = tmp_path / "shape.c", tmp_path / "shape"
    source.write_text(body + "return 0; }\n")
    subprocess.run([*compiler, "-o", str(program), str(source)], check=True, timeout=120)
    lines = subprocess.run([program], check=True, capture_output=True, text=True, timeout=10).stdout.split("\n")
    assert [int(line) for line in lines[: len(shapes)]] == [size for _, size in layout.sizes]
    placed = [tuple(map(int, line.split())) for line in lines[len(shapes) : -1]]
    assert placed == [(field.offset, field.end - field.offset) for field in layout.fields]


@pytest.mark.parametrize("kind", layouts.LAYOUTS)
def test_an_unpacker_reads_exactly_the_fields_that_the_stride_has(kind):
    layout = layouts.LAYOUTS[kind]
    for release, stride in layout.sizes:
        reader = layouts.unpacker(kind, stride)
        at = tuple(map(int, release.split(".")))
        expected = [f.name for f in layout.fields if not f.since or tuple(map(int, f.since.split("."))) <= at]
        assert list(reader.names) == expected
        assert reader.struct.size <= stride
        raw = bytearray(stride)
        for number, field in enumerate(layout.fields):
            if field.end <= stride:
                value = bytes([number]) * 16 if field.code == "16s" else number
                struct.pack_into("<" + field.code, raw, field.offset, value)
        values = reader.struct.unpack_from(raw)
        assert values == tuple(
            bytes([n]) * 16 if f.code == "16s" else n for n, f in enumerate(layout.fields) if f.end <= stride
        )


def test_default_kinds_never_serialise_the_program():
    assert layouts.KERNEL not in layouts.DEFAULT_KINDS
    assert layouts.CONCURRENT_KERNEL in layouts.DEFAULT_KINDS


def test_minimum_stride_is_the_oldest_size():
    assert layouts.minimum_stride(layouts.CONCURRENT_KERNEL) == 176
    assert layouts.minimum_stride(1234) == 8

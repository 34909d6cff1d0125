"""The releases of the real libcupti that tests ask: where they lie, what compiles their headers."""

import importlib.util
import subprocess

from .machine import ROOT

_spec = importlib.util.spec_from_file_location("fetch_cupti", ROOT / "tests" / "tools" / "fetch_cupti.py")
fetch_cupti = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fetch_cupti)
EVALUATES, RELEASES = fetch_cupti.EVALUATES, list(fetch_cupti.RELEASES)
WITH_HEADERS = [*RELEASES, *fetch_cupti.LATER]

#: What the headers want of CUDA's own.
STUB = """
#pragma once
#include <stddef.h>
#include <stdint.h>
typedef int CUdevice, CUdevice_attribute, CUgraphNodeType, CUresult, CUlaunchAttributeID, CUstreamAttrID;
typedef struct context *CUcontext; typedef struct stream *CUstream; typedef struct module *CUmodule;
typedef struct function *CUfunction; typedef struct graph *CUgraph; typedef struct node *CUgraphNode;
typedef struct instance *CUgraphExec; typedef struct event *CUevent; typedef unsigned long long CUdeviceptr;
typedef struct { char bytes[16]; } CUuuid;
typedef union { int one; char pad[64]; } CUlaunchAttributeValue, CUstreamAttrValue;
typedef struct CUaccessPolicyWindow_st CUaccessPolicyWindow;
"""


def at(release):
    return tuple(map(int, release.split(".")))


def printed_by(headers, lines, include, compiler, folder):
    """What a C program of these lines prints, a tuple of numbers for each of its lines."""
    (folder / "cuda.h").write_text(STUB)
    (folder / "builtin_types.h").write_text('#include "cuda.h"\n')
    (folder / "string").write_text("")  # C++'s, which some of the headers name and do not need
    source, program = folder / "header.c", folder / "header"
    included = "".join(f"#include <{header}>\n" for header in ("stdbool.h", "stdio.h", *headers))
    source.write_text(included + "int main(void) {\n" + "\n".join(lines) + "}\n")
    command = [*compiler, "-w", f"-I{folder}", f"-I{include}", "-o", str(program), str(source)]
    subprocess.run(command, check=True, timeout=120)
    printed = subprocess.run([program], check=True, capture_output=True, text=True, timeout=10).stdout
    return [tuple(map(int, line.split())) for line in printed.splitlines()]

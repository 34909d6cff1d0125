"""The few Vulkan structures and functions gpusense reads facts with; names and fields are vulkan_core.h's own.

``tests/backends/wgpu/test_vulkan.py`` compares sizes and offsets with that header where it is installed. Vulkan 1.1 is
asked for, because the …2 queries are core there.
"""

import ctypes
from ctypes import POINTER, Structure, c_char, c_char_p, c_float, c_int, c_uint8, c_uint32, c_uint64, c_void_p

from .binding import prototypes

API_VERSION = (1 << 22) | (1 << 12)  # 1.1

HEAP_DEVICE_LOCAL = 1
TIME_DOMAIN_DEVICE, TIME_DOMAIN_CLOCK_MONOTONIC = 0, 1

S_APPLICATION_INFO, S_INSTANCE_CREATE_INFO, S_DEVICE_QUEUE_CREATE_INFO, S_DEVICE_CREATE_INFO = 0, 1, 2, 3
S_PROPERTIES_2, S_MEMORY_PROPERTIES_2 = 1000059001, 1000059006
S_ID_PROPERTIES = 1000071004
S_CALIBRATED_TIMESTAMP_INFO = 1000184000
S_PCI_BUS_INFO = 1000212000
S_MEMORY_BUDGET = 1000237000

EXT_CALIBRATED = b"VK_EXT_calibrated_timestamps"
EXT_BUDGET = b"VK_EXT_memory_budget"
EXT_PCI = b"VK_EXT_pci_bus_info"

HEAD = (("sType", c_uint32), ("pNext", c_void_p))


class VkApplicationInfo(Structure):
    _fields_ = (
        *HEAD,
        ("pApplicationName", c_char_p),
        ("applicationVersion", c_uint32),
        ("pEngineName", c_char_p),
        ("engineVersion", c_uint32),
        ("apiVersion", c_uint32),
    )


class VkInstanceCreateInfo(Structure):
    _fields_ = (
        *HEAD,
        ("flags", c_uint32),
        ("pApplicationInfo", POINTER(VkApplicationInfo)),
        ("enabledLayerCount", c_uint32),
        ("ppEnabledLayerNames", c_void_p),
        ("enabledExtensionCount", c_uint32),
        ("ppEnabledExtensionNames", c_void_p),
    )


class VkDeviceQueueCreateInfo(Structure):
    _fields_ = (
        *HEAD,
        ("flags", c_uint32),
        ("queueFamilyIndex", c_uint32),
        ("queueCount", c_uint32),
        ("pQueuePriorities", POINTER(c_float)),
    )


class VkDeviceCreateInfo(Structure):
    _fields_ = (
        *HEAD,
        ("flags", c_uint32),
        ("queueCreateInfoCount", c_uint32),
        ("pQueueCreateInfos", POINTER(VkDeviceQueueCreateInfo)),
        ("enabledLayerCount", c_uint32),
        ("ppEnabledLayerNames", c_void_p),
        ("enabledExtensionCount", c_uint32),
        ("ppEnabledExtensionNames", POINTER(c_char_p)),
        ("pEnabledFeatures", c_void_p),
    )


class VkExtensionProperties(Structure):
    _fields_ = (("extensionName", c_char * 256), ("specVersion", c_uint32))


class VkPhysicalDeviceProperties(Structure):
    """``limits`` is opaque but for :data:`TIMESTAMP_PERIOD_OFFSET`."""

    _fields_ = (
        ("apiVersion", c_uint32),
        ("driverVersion", c_uint32),
        ("vendorID", c_uint32),
        ("deviceID", c_uint32),
        ("deviceType", c_uint32),
        ("deviceName", c_char * 256),
        ("pipelineCacheUUID", c_uint8 * 16),
        ("limits", c_uint64 * 63),
        ("sparseProperties", c_uint32 * 5),
    )


#: offsetof(VkPhysicalDeviceLimits, timestampPeriod)
TIMESTAMP_PERIOD_OFFSET = 424


class VkPhysicalDeviceProperties2(Structure):
    _fields_ = (*HEAD, ("properties", VkPhysicalDeviceProperties))


class VkPhysicalDeviceIDProperties(Structure):
    _fields_ = (
        *HEAD,
        ("deviceUUID", c_uint8 * 16),
        ("driverUUID", c_uint8 * 16),
        ("deviceLUID", c_uint8 * 8),
        ("deviceNodeMask", c_uint32),
        ("deviceLUIDValid", c_uint32),
    )


class VkPhysicalDevicePCIBusInfoPropertiesEXT(Structure):
    _fields_ = (
        *HEAD,
        ("pciDomain", c_uint32),
        ("pciBus", c_uint32),
        ("pciDevice", c_uint32),
        ("pciFunction", c_uint32),
    )


class VkQueueFamilyProperties(Structure):
    _fields_ = (
        ("queueFlags", c_uint32),
        ("queueCount", c_uint32),
        ("timestampValidBits", c_uint32),
        ("minImageTransferGranularity", c_uint32 * 3),
    )


class VkMemoryHeap(Structure):
    _fields_ = (("size", c_uint64), ("flags", c_uint32))


class VkMemoryType(Structure):
    _fields_ = (("propertyFlags", c_uint32), ("heapIndex", c_uint32))


class VkPhysicalDeviceMemoryProperties(Structure):
    _fields_ = (
        ("memoryTypeCount", c_uint32),
        ("memoryTypes", VkMemoryType * 32),
        ("memoryHeapCount", c_uint32),
        ("memoryHeaps", VkMemoryHeap * 16),
    )


class VkPhysicalDeviceMemoryProperties2(Structure):
    _fields_ = (*HEAD, ("memoryProperties", VkPhysicalDeviceMemoryProperties))


class VkPhysicalDeviceMemoryBudgetPropertiesEXT(Structure):
    _fields_ = (*HEAD, ("heapBudget", c_uint64 * 16), ("heapUsage", c_uint64 * 16))


class VkCalibratedTimestampInfoEXT(Structure):
    _fields_ = (*HEAD, ("timeDomain", c_uint32))


#: Every structure above, for the header test.
STRUCTURES = (
    VkApplicationInfo,
    VkInstanceCreateInfo,
    VkDeviceQueueCreateInfo,
    VkDeviceCreateInfo,
    VkExtensionProperties,
    VkPhysicalDeviceProperties,
    VkPhysicalDeviceProperties2,
    VkPhysicalDeviceIDProperties,
    VkPhysicalDevicePCIBusInfoPropertiesEXT,
    VkQueueFamilyProperties,
    VkMemoryHeap,
    VkMemoryType,
    VkPhysicalDeviceMemoryProperties,
    VkPhysicalDeviceMemoryProperties2,
    VkPhysicalDeviceMemoryBudgetPropertiesEXT,
    VkCalibratedTimestampInfoEXT,
)

VULKAN = prototypes(
    vkCreateInstance=(c_int, POINTER(VkInstanceCreateInfo), c_void_p, POINTER(c_void_p)),
    vkDestroyInstance=(None, c_void_p, c_void_p),
    vkEnumeratePhysicalDevices=(c_int, c_void_p, POINTER(c_uint32), POINTER(c_void_p)),
    vkEnumerateDeviceExtensionProperties=(
        c_int,
        c_void_p,
        c_char_p,
        POINTER(c_uint32),
        POINTER(VkExtensionProperties),
    ),
    vkGetPhysicalDeviceProperties2=(None, c_void_p, POINTER(VkPhysicalDeviceProperties2)),
    vkGetPhysicalDeviceMemoryProperties2=(None, c_void_p, POINTER(VkPhysicalDeviceMemoryProperties2)),
    vkGetPhysicalDeviceQueueFamilyProperties=(
        None,
        c_void_p,
        POINTER(c_uint32),
        POINTER(VkQueueFamilyProperties),
    ),
    vkCreateDevice=(c_int, c_void_p, POINTER(VkDeviceCreateInfo), c_void_p, POINTER(c_void_p)),
    vkDestroyDevice=(None, c_void_p, c_void_p),
    vkGetInstanceProcAddr=(c_void_p, c_void_p, c_char_p),
    vkGetDeviceProcAddr=(c_void_p, c_void_p, c_char_p),
)

GET_TIME_DOMAINS = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(c_uint32), POINTER(c_uint32))
GET_CALIBRATED = ctypes.CFUNCTYPE(
    c_int, c_void_p, c_uint32, POINTER(VkCalibratedTimestampInfoEXT), POINTER(c_uint64), POINTER(c_uint64)
)

/* A stand-in for the driver's library, with four GPUs and one partition.
 *
 * FAKE_NVML_BROKEN: names of fields, each of which answers "not supported"; with a "/" before the
 * name, every second call of it answers "unknown error".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 4
#define PARTITION 4 /* the fifth handle */
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define UNKNOWN 999

typedef struct { int number; } device_t;
typedef device_t *handle_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char address[32];
} pci_t;

static device_t devices[] = {{0}, {1}, {2}, {3}, {4}};
static const char *uuids[] = {
    "GPU-00000000-aaaa-0000-0000-000000000000", "GPU-11111111-aaaa-0000-0000-000000000000",
    "GPU-22222222-aaaa-0000-0000-000000000000", "GPU-33333333-aaaa-0000-0000-000000000000",
    "MIG-44444444-aaaa-0000-0000-000000000000"};
static unsigned calls;

static int broken(const char *field) {
    const char *list = getenv("FAKE_NVML_BROKEN");
    char every_second[64];
    if (!list) return 0;
    snprintf(every_second, sizeof every_second, "/%s", field);
    if (strstr(list, every_second)) return calls++ % 2 ? UNKNOWN : 0;
    return strstr(list, field) ? NOT_SUPPORTED : 0;
}

int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) {
    return code == NOT_SUPPORTED ? "Not Supported" : code == UNKNOWN ? "Unknown Error" : "Error";
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "1.2.3"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = COUNT; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t *handle) {
    if (index >= COUNT) return INVALID_ARGUMENT;
    *handle = &devices[index];
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, handle_t *handle) {
    for (int i = 0; i <= PARTITION; i++)
        if (!strcmp(uuids[i], uuid)) { *handle = &devices[i]; return 0; }
    return NOT_FOUND;
}
int nvmlDeviceGetUUID(handle_t device, char *text, unsigned size) {
    snprintf(text, size, "%s", uuids[device->number]);
    return 0;
}
int nvmlDeviceGetName(handle_t device, char *text, unsigned size) {
    const char *mixed = getenv("FAKE_NVML_MIXED");
    snprintf(text, size, "Fake GPU %d", mixed ? device->number : 0);
    return 0;
}
int nvmlDeviceGetPciInfo_v3(handle_t device, pci_t *info) {
    memset(info, 0, sizeof *info);
    info->bus = 0x10 + device->number;
    return 0;
}
int nvmlDeviceGetUtilizationRates(handle_t device, utilization_t *rates) {
    int code = device->number == PARTITION ? NOT_SUPPORTED : broken("utilization");
    if (code) return code;
    rates->gpu = 10 * (device->number + 1);
    rates->memory = device->number + 1;
    return 0;
}
int nvmlDeviceGetMemoryInfo(handle_t device, memory_t *memory) {
    int code = broken("memory");
    if (code) return code;
    memory->total = 1000;
    memory->used = 100 * (device->number + 1);
    memory->free = memory->total - memory->used;
    return 0;
}
int nvmlDeviceGetPowerUsage(handle_t device, unsigned *milliwatts) {
    int code = broken("power");
    if (code) return code;
    *milliwatts = 1000 * (device->number + 1);
    return 0;
}
int nvmlDeviceGetTemperature(handle_t device, unsigned sensor, unsigned *celsius) {
    (void)sensor;
    *celsius = 40 + device->number;
    return broken("temperature");
}
int nvmlDeviceGetClockInfo(handle_t device, unsigned which, unsigned *megahertz) {
    *megahertz = 1000 * which + device->number;
    return broken("clock");
}
int nvmlDeviceGetCurrentClocksEventReasons(handle_t device, unsigned long long *reasons) {
    *reasons = device->number;
    return broken("throttle");
}

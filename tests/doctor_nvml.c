/* A libnvidia-ml.so.1 without a GPU. FAKE_NVML_FAIL="function=error,…" makes functions fail,
   FAKE_NVML_CRASH names one that crashes, FAKE_NVML_DRIVER and FAKE_NVML_CUDA are the versions,
   FAKE_NVML_GPUS the number of GPUs (1), FAKE_NVML_CAPABILITY such as 90 the capability. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int result;
typedef struct { int index; } gpu;
static gpu gpus[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};

static result outcome(const char *function) {
    const char *crash = getenv("FAKE_NVML_CRASH");
    if (crash && !strcmp(crash, function)) raise(SIGSEGV);
    const char *fail = getenv("FAKE_NVML_FAIL");
    size_t length = strlen(function);
    for (const char *at = fail; at; at = strchr(at, ',')) {
        if (*at == ',') at++;
        if (!strncmp(at, "*=", 2)) return atoi(at + 2);
        if (!strncmp(at, function, length) && at[length] == '=') return atoi(at + length + 1);
        if (!strchr(at, ',')) break;
    }
    return 0;
}
static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}
#define CHECK do { result r = outcome(__func__); if (r) return r; } while (0)

result nvmlInit_v2(void) { CHECK; return 0; }
result nvmlInitWithFlags(unsigned flags) { (void)flags; CHECK; return 0; }
result nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(result r) { (void)r; return "fake"; }
result nvmlSystemGetDriverVersion(char *text, unsigned length) {
    CHECK;
    const char *version = getenv("FAKE_NVML_DRIVER");
    snprintf(text, length, "%s", version ? version : "580.65.06");
    return 0;
}
result nvmlSystemGetNVMLVersion(char *text, unsigned length) {
    CHECK; snprintf(text, length, "13.580"); return 0;
}
result nvmlSystemGetCudaDriverVersion(int *version) {
    CHECK; *version = number("FAKE_NVML_CUDA", 13000); return 0;
}
result nvmlSystemGetCudaDriverVersion_v2(int *version) {
    CHECK; *version = number("FAKE_NVML_CUDA", 13000); return 0;
}
result nvmlDeviceGetCount_v2(unsigned *count) {
    CHECK; *count = (unsigned)number("FAKE_NVML_GPUS", 1); return 0;
}
result nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu **device) {
    CHECK; *device = &gpus[index]; return 0;
}
result nvmlDeviceGetName(gpu *device, char *text, unsigned length) {
    (void)device; CHECK; snprintf(text, length, "Fake GPU"); return 0;
}
result nvmlDeviceGetUUID(gpu *device, char *text, unsigned length) {
    CHECK; snprintf(text, length, "GPU-%d0000000-aaaa-bbbb-cccc-dddddddddddd", device->index);
    return 0;
}
typedef struct {
    char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32];
} pci;
result nvmlDeviceGetPciInfo_v3(gpu *device, pci *info) {
    CHECK;
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02d:00.0", device->index + 1);
    return 0;
}
result nvmlDeviceGetCudaComputeCapability(gpu *device, int *major, int *minor) {
    (void)device; CHECK;
    int capability = number("FAKE_NVML_CAPABILITY", 90);
    *major = capability / 10; *minor = capability % 10;
    return 0;
}
typedef struct { unsigned long long total, free, used; } memory;
result nvmlDeviceGetMemoryInfo(gpu *device, memory *info) {
    (void)device; CHECK;
    info->total = 80000000000ULL; info->used = 1000000000ULL; info->free = 79000000000ULL;
    return 0;
}
typedef struct { unsigned gpu, memory; } utilization;
result nvmlDeviceGetUtilizationRates(gpu *device, utilization *rates) {
    (void)device; CHECK; rates->gpu = 7; rates->memory = 3; return 0;
}
#define ANSWER(name, value) \
    result name(gpu *device, unsigned *answer) { (void)device; CHECK; *answer = value; return 0; }
ANSWER(nvmlDeviceGetPowerUsage, 90000)
ANSWER(nvmlDeviceGetEnforcedPowerLimit, 700000)
ANSWER(nvmlDeviceGetPersistenceMode, 1)
ANSWER(nvmlDeviceGetComputeMode, 0)
ANSWER(nvmlDeviceGetCurrPcieLinkWidth, 16)
ANSWER(nvmlDeviceGetMaxPcieLinkWidth, 16)
ANSWER(nvmlDeviceGetCurrPcieLinkGeneration, 5)
ANSWER(nvmlDeviceGetMaxPcieLinkGeneration, 5)
#define ASKED(name, value) \
    result name(gpu *device, int which, unsigned *answer) { \
        (void)device; (void)which; CHECK; *answer = value; return 0; }
ASKED(nvmlDeviceGetTemperature, 40)
ASKED(nvmlDeviceGetClockInfo, 1980)
result nvmlDeviceGetCurrentClocksEventReasons(gpu *device, unsigned long long *mask) {
    (void)device; CHECK; *mask = 1; return 0;
}
result nvmlDeviceGetCurrentClocksThrottleReasons(gpu *device, unsigned long long *mask) {
    (void)device; CHECK; *mask = 1; return 0;
}
result nvmlDeviceGetTotalEccErrors(gpu *device, int kind, int counter, unsigned long long *count) {
    (void)device; (void)kind; (void)counter; CHECK; *count = 0; return 0;
}
result nvmlDeviceGetMigMode(gpu *device, unsigned *now, unsigned *pending) {
    (void)device; CHECK; *now = 0; *pending = 0; return 0;
}
result nvmlDeviceGetComputeRunningProcesses_v3(gpu *device, unsigned *count, void *infos) {
    (void)device; (void)infos; CHECK; *count = 0; return 0;
}

/* A mock of NVIDIA's libnvidia-ml.so.1, loaded by real NVML clients on a machine without a GPU.
 *
 * What the GPUs answer stands in the text file named by NVML_MOCK_FILE, one key=value per line
 * ('#' starts a comment line). The file is read again whenever its time, size or inode changes:
 * write it beside its place and rename it, so that no reader sees half of it.
 *
 * Keys
 *   n=8                      number of GPUs (default 1); order=2,0,1 their enumeration order
 *   driver= nvml=            version strings
 *   gpu.3.util=57            a value of GPU 3, before gpu.*.util=, before util=
 *   gpu.0.mig.1.util=57      a value of MIG device 1 of GPU 0, before mig.util=
 * A value is one of
 *   12  -1  3.5              a number
 *   1000+5e6/s               a number that grows from the moment the library was loaded
 *   N/A                      NVML_ERROR_NOT_SUPPORTED
 *   !15                      that NVML error
 * Values of a GPU (units are NVML's)
 *   name uuid serial vbios arch numa cores buswidth      identity
 *   util memutil enc dec jpg ofa                         percent
 *   mem_total mem_used mem_reserved mem_free             bytes; free is what the others leave
 *   clk_gr clk_sm clk_mem clk_vid, clkmax_gr ...         MHz
 *   power plimit (mW)  energy (mJ)  temp temp_slow temp_shut (Celsius)  fan fans pstate persist cmode
 *   reasons                  bit mask of clock event reasons;  viol.<policy> ns of violation
 *   pcie_tx_kb pcie_rx_kb (KB/s)  pcie_gen pcie_gen_max pcie_width pcie_width_max pcie_replay  nvlinks
 *   ecc  ecc.<type>.<counter>  ecc.<type>.<counter>.<location>  remap_cor remap_unc remap_pend remap_fail
 *   fi.<field>  fi.<field>.<scope>     nvmlDeviceGetFieldValues; absent = not supported
 *   fit.<field> fit.<field>.<scope>    nvmlValueType_t of the answer: 0 double, 1 uint (wraps at 2^32),
 *                                      2 ulong, 3 ulonglong (default), 4 longlong, 5 int,
 *                                      6 ushort (wraps at 2^16), 7 no legal type
 *   gpm_supported=0|1  gpm.<metric>    GPM; an absent metric is not supported
 *   procs=pid:bytes:sm:mem:gi:ci,...   processes
 *   mig=2                              MIG devices (0 = MIG off);  no_mig=1 = a GPU without MIG
 *   events                             bit mask of supported event types
 * Faults
 *   fail.<function>=3        every call of it returns that error; fail.<function>.<gpu>= on one GPU
 *   fail.*.<gpu>=15          every call on that GPU returns that error
 *   delay_us.<function>=20000  delay_us.<function>.<gpu>=  delay_us.*.<gpu>=   the call takes that long
 *   unhang=1                 calls that are being delayed return at once
 *   exit_waits=1             the process cannot run its exit handlers while a call is being delayed
 *   epoch=1                  a higher number = the driver was reloaded: every call returns stale_rc
 *                            (default 15) until nvmlShutdown and nvmlInit
 *   fork_uninit=1            calls of a forked child return NVML_ERROR_UNINITIALIZED
 *   xid_seq=1 xid=79 xid_gpu=0   one XID event, each time xid_seq grows
 *
 * NVML_MOCK_LOG names a file that gets a line "function gpu rc" per call.
 * Structure layouts are nvml.h's. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

enum {
    SUCCESS = 0,
    ERROR_UNINITIALIZED = 1,
    ERROR_INVALID_ARGUMENT = 2,
    ERROR_NOT_SUPPORTED = 3,
    ERROR_NOT_FOUND = 6,
    ERROR_INSUFFICIENT_SIZE = 7,
    ERROR_TIMEOUT = 10,
    ERROR_GPU_IS_LOST = 15,
    ERROR_ARGUMENT_VERSION_MISMATCH = 25,
};

enum { MAX_GPUS = 64, MAX_MIGS = 8, MAX_KEYS = 4096, BUCKETS = 8192, KEY_SIZE = 72, VALUE_SIZE = 1024 };

/* What an nvmlDevice_t points to: a GPU (mig == 0) or its MIG device number mig - 1. */
typedef struct {
    int gpu;
    int mig;
    int epoch;
} Device;

static Device devices[MAX_GPUS][MAX_MIGS + 1];

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int init_count, init_pid, init_epoch;
static u64 loaded_us;
static i64 xid_seen;

static u64 now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (u64)t.tv_sec * 1000000u + (u64)t.tv_nsec / 1000;
}

/* ---- the key=value file: an open-addressing hash table, guarded by `lock` ---- */

static struct {
    char key[KEY_SIZE];
    char value[VALUE_SIZE];
} entries[MAX_KEYS];
static int entry_count;
static int buckets[BUCKETS];
static struct stat read_stat;

static u32 bucket_of(const char *key)
{
    u32 h = 2166136261u; /* FNV-1a */
    while (*key)
        h = (h ^ (unsigned char)*key++) * 16777619u;
    return h % BUCKETS;
}

/* The bucket that holds `key`, or the empty one where it would go. */
static u32 find_bucket(const char *key)
{
    u32 b = bucket_of(key);
    while (buckets[b] >= 0 && strcmp(entries[buckets[b]].key, key))
        b = (b + 1) % BUCKETS;
    return b;
}

static int is_unchanged(const struct stat *s)
{
    return s->st_mtim.tv_sec == read_stat.st_mtim.tv_sec && s->st_mtim.tv_nsec == read_stat.st_mtim.tv_nsec &&
           s->st_size == read_stat.st_size && s->st_ino == read_stat.st_ino;
}

static void read_file_if_changed(void)
{
    const char *path = getenv("NVML_MOCK_FILE");
    struct stat s;
    if (!loaded_us) {
        loaded_us = now_us();
        memset(buckets, -1, sizeof buckets);
    }
    if (!path || stat(path, &s) || is_unchanged(&s))
        return;
    FILE *f = fopen(path, "r");
    if (!f)
        return;
    read_stat = s;
    entry_count = 0;
    memset(buckets, -1, sizeof buckets);
    char line[KEY_SIZE + VALUE_SIZE + 2];
    while (entry_count < MAX_KEYS && fgets(line, sizeof line, f)) {
        char *value = strchr(line, '=');
        if (line[0] == '#' || !value)
            continue;
        *value++ = 0;
        value[strcspn(value, "\r\n")] = 0;
        snprintf(entries[entry_count].key, KEY_SIZE, "%.*s", KEY_SIZE - 1, line);
        snprintf(entries[entry_count].value, VALUE_SIZE, "%.*s", VALUE_SIZE - 1, value);
        buckets[find_bucket(entries[entry_count].key)] = entry_count;
        entry_count++;
    }
    fclose(f);
}

static const char *lookup(const char *key)
{
    if (!entry_count)
        return NULL;
    int at = buckets[find_bucket(key)];
    return at < 0 ? NULL : entries[at].value;
}

/* The text of a device's value, most specific key first; NULL when no key names it. */
static const char *device_text(const Device *d, const char *key)
{
    char full[120];
    const char *text = NULL;
    if (d && d->mig) {
        snprintf(full, sizeof full, "gpu.%d.mig.%d.%s", d->gpu, d->mig - 1, key);
        if ((text = lookup(full)))
            return text;
        snprintf(full, sizeof full, "mig.%s", key);
        return lookup(full);
    }
    if (d) {
        snprintf(full, sizeof full, "gpu.%d.%s", d->gpu, key);
        if ((text = lookup(full)))
            return text;
        snprintf(full, sizeof full, "gpu.*.%s", key);
        if ((text = lookup(full)))
            return text;
    }
    return lookup(key);
}

/* A device's number into *out; returns 0 or the NVML error that the value stands for. */
static int device_number(const Device *d, const char *key, const char *fallback, double *out)
{
    pthread_mutex_lock(&lock);
    const char *text = device_text(d, key);
    int rc = SUCCESS;
    if (!text)
        text = fallback;
    if (!text || !strcmp(text, "N/A")) {
        rc = ERROR_NOT_SUPPORTED;
    } else if (text[0] == '!') {
        rc = atoi(text + 1);
    } else {
        char *end;
        *out = strtod(text, &end);
        if (*end == '+' || (*end == '-' && strchr(end, '/')))
            *out += strtod(end, NULL) * ((double)(now_us() - loaded_us) / 1e6);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

static int device_u32(const Device *d, const char *key, const char *fallback, u32 *out)
{
    double x = 0;
    int rc = device_number(d, key, fallback, &x);
    if (!rc)
        *out = (u32)(i64)x;
    return rc;
}

static int device_u64(const Device *d, const char *key, const char *fallback, u64 *out)
{
    double x = 0;
    int rc = device_number(d, key, fallback, &x);
    if (!rc)
        *out = x < 0x1p64 ? (u64)x : ~0ull;
    return rc;
}

static int device_string(const Device *d, const char *key, const char *fallback, char *out, u32 size)
{
    pthread_mutex_lock(&lock);
    const char *text = device_text(d, key);
    snprintf(out, size, "%s", text ? text : fallback);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

static i64 setting(const char *key, i64 fallback)
{
    pthread_mutex_lock(&lock);
    const char *text = lookup(key);
    i64 value = text ? atoll(text) : fallback;
    pthread_mutex_unlock(&lock);
    return value;
}

static int gpu_count(void)
{
    int n = (int)setting("n", 1);
    return n < MAX_GPUS ? n : MAX_GPUS;
}

static int mig_count(const Device *d)
{
    u32 n = 0;
    device_u32(d, "mig", "0", &n);
    return n < MAX_MIGS ? (int)n : MAX_MIGS;
}

/* ---- what every call does first: state checks, injected errors and delays, the log ---- */

static void log_call(const char *function, int gpu, int rc)
{
    static int fd = -2;
    if (fd == -2) {
        const char *path = getenv("NVML_MOCK_LOG");
        fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
    }
    if (fd < 0)
        return;
    char line[120];
    int n = snprintf(line, sizeof line, "%s %d %d\n", function, gpu, rc);
    if (write(fd, line, (size_t)n) < 0)
        fd = -1;
}

static int state_error(const char *function, const Device *d)
{
    int is_init = !strncmp(function, "nvmlInit", 8);
    int epoch = (int)setting("epoch", 0);
    int rc = SUCCESS;
    if (!init_count && !is_init && strcmp(function, "nvmlErrorString"))
        rc = ERROR_UNINITIALIZED;
    if (init_count && getpid() != init_pid && lookup("fork_uninit"))
        rc = ERROR_UNINITIALIZED;
    int is_stale = (d && d->epoch != epoch) ||
                   (init_count && init_epoch != epoch && !is_init && strcmp(function, "nvmlShutdown"));
    return is_stale ? (int)setting("stale_rc", ERROR_GPU_IS_LOST) : rc;
}

static int injected_error(const char *function, int gpu, int rc)
{
    char key[120];
    snprintf(key, sizeof key, "fail.%s", function);
    rc = (int)setting(key, rc);
    if (gpu < 0)
        return rc;
    snprintf(key, sizeof key, "fail.*.%d", gpu);
    rc = (int)setting(key, rc);
    snprintf(key, sizeof key, "fail.%s.%d", function, gpu);
    return (int)setting(key, rc);
}

static i64 injected_delay_us(const char *function, int gpu)
{
    char key[120];
    snprintf(key, sizeof key, "delay_us.%s", function);
    i64 us = setting(key, 0);
    if (gpu < 0)
        return us;
    snprintf(key, sizeof key, "delay_us.*.%d", gpu);
    us = setting(key, us);
    snprintf(key, sizeof key, "delay_us.%s.%d", function, gpu);
    return setting(key, us);
}

static int delayed_calls;

static void wait_us(i64 us)
{
    __atomic_add_fetch(&delayed_calls, 1, __ATOMIC_SEQ_CST);
    while (us > 0) {
        i64 step = us > 100000 ? 100000 : us;
        usleep((useconds_t)step);
        us -= step;
        pthread_mutex_lock(&lock);
        read_file_if_changed();
        if (lookup("unhang"))
            us = 0;
        pthread_mutex_unlock(&lock);
    }
    __atomic_sub_fetch(&delayed_calls, 1, __ATOMIC_SEQ_CST);
}

__attribute__((destructor)) static void wait_at_exit(void)
{
    while (__atomic_load_n(&delayed_calls, __ATOMIC_SEQ_CST) && setting("exit_waits", 0))
        usleep(10000);
}

static int enter(const char *function, const Device *d)
{
    int gpu = d ? d->gpu : -1;
    pthread_mutex_lock(&lock);
    read_file_if_changed();
    int rc = injected_error(function, gpu, state_error(function, d));
    i64 delay_us = injected_delay_us(function, gpu);
    log_call(function, gpu, rc);
    pthread_mutex_unlock(&lock);
    wait_us(delay_us);
    return rc;
}

#define ENTER(device)                                        \
    do {                                                     \
        int rc_ = enter(__func__, (const Device *)(device)); \
        if (rc_)                                             \
            return rc_;                                      \
    } while (0)

/* A call that answers one unsigned int from one key. */
#define U32_CALL(function, key, fallback)         \
    API int function(Device *d, u32 *out)         \
    {                                             \
        ENTER(d);                                 \
        return device_u32(d, key, fallback, out); \
    }

#define U64_CALL(function, key, fallback)         \
    API int function(Device *d, u64 *out)         \
    {                                             \
        ENTER(d);                                 \
        return device_u64(d, key, fallback, out); \
    }

#define STRING_CALL(function, key, fallback)               \
    API int function(Device *d, char *out, u32 size)       \
    {                                                      \
        ENTER(d);                                          \
        return device_string(d, key, fallback, out, size); \
    }

/* Percent, and the sampling period in microseconds. */
#define ENGINE_CALL(function, key)                     \
    API int function(Device *d, u32 *out, u32 *period) \
    {                                                  \
        ENTER(d);                                      \
        *period = 167000;                              \
        return device_u32(d, key, "0", out);           \
    }

/* ---- library ---- */

API int nvmlInitWithFlags(u32 flags)
{
    (void)flags;
    ENTER(NULL);
    init_count++;
    init_pid = getpid();
    init_epoch = (int)setting("epoch", 0);
    return SUCCESS;
}

API int nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

API int nvmlShutdown(void)
{
    ENTER(NULL);
    if (init_count)
        init_count--;
    return SUCCESS;
}

API const char *nvmlErrorString(int rc)
{
    (void)rc;
    return "mock error";
}

API int nvmlSystemGetDriverVersion(char *out, u32 size)
{
    ENTER(NULL);
    return device_string(NULL, "driver", "550.54.15", out, size);
}

API int nvmlSystemGetNVMLVersion(char *out, u32 size)
{
    ENTER(NULL);
    return device_string(NULL, "nvml", "12.550.54.15", out, size);
}

API int nvmlSystemGetCudaDriverVersion(int *out)
{
    ENTER(NULL);
    *out = 12040;
    return SUCCESS;
}

API int nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    ENTER(NULL);
    *out = 12040;
    return SUCCESS;
}

API int nvmlSystemGetProcessName(u32 pid, char *out, u32 size)
{
    ENTER(NULL);
    snprintf(out, size, "proc-%u", pid);
    return SUCCESS;
}

/* ---- devices ---- */

static void renew_handles(int gpu)
{
    for (int m = 0; m <= MAX_MIGS; m++)
        devices[gpu][m] = (Device){gpu, m, (int)setting("epoch", 0)};
}

static void uuid_of(const Device *d, char *out, u32 size)
{
    char fallback[64];
    if (d->mig)
        snprintf(fallback, sizeof fallback, "MIG-%08d-0000-0000-0000-%012d", d->gpu, d->mig - 1);
    else
        snprintf(fallback, sizeof fallback, "GPU-%08d-0000-0000-0000-000000000000", d->gpu);
    device_string(d, "uuid", fallback, out, size);
}

/* Which GPU stands at `index` of the enumeration. */
static int gpu_at(u32 index)
{
    int gpu = (int)index;
    pthread_mutex_lock(&lock);
    const char *order = lookup("order");
    for (u32 i = 0; order && i <= index; i++) {
        gpu = atoi(order);
        if ((order = strchr(order, ',')))
            order++;
    }
    pthread_mutex_unlock(&lock);
    return gpu >= 0 && gpu < MAX_GPUS ? gpu : (int)index;
}

API int nvmlDeviceGetCount_v2(u32 *out)
{
    ENTER(NULL);
    *out = (u32)gpu_count();
    return SUCCESS;
}

API int nvmlDeviceGetHandleByIndex_v2(u32 index, Device **out)
{
    pthread_mutex_lock(&lock);
    read_file_if_changed();
    pthread_mutex_unlock(&lock);
    if (index >= (u32)gpu_count()) {
        ENTER(NULL);
        return ERROR_INVALID_ARGUMENT;
    }
    int gpu = gpu_at(index);
    Device asked = {gpu, 0, (int)setting("epoch", 0)}; /* a lost GPU has no handle either */
    ENTER(&asked);
    renew_handles(gpu);
    *out = &devices[gpu][0];
    return SUCCESS;
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, Device **out)
{
    ENTER(NULL);
    for (int gpu = 0; gpu < gpu_count(); gpu++) {
        for (int m = 0; m <= MAX_MIGS; m++) {
            Device candidate = {gpu, m, (int)setting("epoch", 0)};
            char its_uuid[96];
            uuid_of(&candidate, its_uuid, sizeof its_uuid);
            if (strcmp(its_uuid, uuid))
                continue;
            ENTER(&candidate);
            renew_handles(gpu);
            *out = &devices[gpu][m];
            return SUCCESS;
        }
    }
    return ERROR_NOT_FOUND;
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char *id, Device **out)
{
    ENTER(NULL);
    int bus;
    if (sscanf(id, "%*x:%x", (u32 *)&bus) != 1 || bus < 1 || bus > gpu_count())
        return ERROR_NOT_FOUND;
    renew_handles(bus - 1);
    *out = &devices[bus - 1][0];
    return SUCCESS;
}

API int nvmlDeviceGetUUID(Device *d, char *out, u32 size)
{
    ENTER(d);
    uuid_of(d, out, size);
    return SUCCESS;
}

API int nvmlDeviceGetIndex(Device *d, u32 *out)
{
    ENTER(d);
    *out = (u32)(d->mig ? d->mig - 1 : d->gpu);
    return SUCCESS;
}

API int nvmlDeviceGetMinorNumber(Device *d, u32 *out)
{
    ENTER(d);
    *out = (u32)d->gpu;
    return SUCCESS;
}

API int nvmlDeviceGetName(Device *d, char *out, u32 size)
{
    ENTER(d);
    return device_string(d, "name", d->mig ? "NVIDIA H100 MIG 1g.10gb" : "NVIDIA H100 80GB HBM3", out, size);
}

typedef struct {
    char legacy_id[16];
    u32 domain, bus, device, device_id, subsystem_id;
    char id[32];
} PciInfo;

API int nvmlDeviceGetPciInfo_v3(Device *d, PciInfo *out)
{
    ENTER(d);
    memset(out, 0, sizeof *out);
    out->bus = (u32)d->gpu + 1;
    out->device_id = 0x233010de;
    snprintf(out->legacy_id, sizeof out->legacy_id, "0000:%02X:00.0", out->bus);
    snprintf(out->id, sizeof out->id, "00000000:%02X:00.0", out->bus);
    return SUCCESS;
}

API int nvmlDeviceGetCudaComputeCapability(Device *d, int *major, int *minor)
{
    ENTER(d);
    *major = 9;
    *minor = 0;
    return SUCCESS;
}

STRING_CALL(nvmlDeviceGetSerial, "serial", "1650000000000")
STRING_CALL(nvmlDeviceGetVbiosVersion, "vbios", "96.00.74.00.01")
U32_CALL(nvmlDeviceGetArchitecture, "arch", "9")
U32_CALL(nvmlDeviceGetNumaNodeId, "numa", NULL)
U32_CALL(nvmlDeviceGetNumGpuCores, "cores", "16896")
U32_CALL(nvmlDeviceGetMemoryBusWidth, "buswidth", "5120")
U32_CALL(nvmlDeviceGetPersistenceMode, "persist", "1")
U32_CALL(nvmlDeviceGetComputeMode, "cmode", "0")
U32_CALL(nvmlDeviceGetDisplayMode, "display_mode", "0")
U32_CALL(nvmlDeviceGetDisplayActive, "display_active", "0")

/* ---- utilisation, memory ---- */

API int nvmlDeviceGetUtilizationRates(Device *d, u32 *out)
{
    ENTER(d);
    if (d->mig || mig_count(d) > 0)
        return ERROR_NOT_SUPPORTED;
    int rc = device_u32(d, "util", "10", &out[0]);
    return rc ? rc : device_u32(d, "memutil", "5", &out[1]);
}

ENGINE_CALL(nvmlDeviceGetEncoderUtilization, "enc")
ENGINE_CALL(nvmlDeviceGetDecoderUtilization, "dec")
ENGINE_CALL(nvmlDeviceGetJpgUtilization, "jpg")
ENGINE_CALL(nvmlDeviceGetOfaUtilization, "ofa")

typedef struct {
    u64 total, free, used;
} Memory;

typedef struct {
    u32 version;
    u64 total, reserved, free, used;
} MemoryV2;

static int memory_of(const Device *d, MemoryV2 *out)
{
    int rc = device_u64(d, "mem_total", "85899345920", &out->total);
    if (!rc)
        rc = device_u64(d, "mem_used", "1073741824", &out->used);
    if (!rc)
        rc = device_u64(d, "mem_reserved", "536870912", &out->reserved);
    if (!rc && device_u64(d, "mem_free", NULL, &out->free))
        out->free = out->total - out->used - out->reserved;
    return rc;
}

/* The first version counts what the driver reserves as used. */
API int nvmlDeviceGetMemoryInfo(Device *d, Memory *out)
{
    ENTER(d);
    MemoryV2 m = {0};
    int rc = memory_of(d, &m);
    if (!rc)
        *out = (Memory){m.total, m.free, m.used + m.reserved};
    return rc;
}

API int nvmlDeviceGetMemoryInfo_v2(Device *d, MemoryV2 *out)
{
    ENTER(d);
    if (out->version != 0x02000028)
        return ERROR_ARGUMENT_VERSION_MISMATCH;
    return memory_of(d, out);
}

API int nvmlDeviceGetBAR1MemoryInfo(Device *d, Memory *out)
{
    ENTER(d);
    *out = (Memory){1ull << 37, (1ull << 37) - (1 << 20), 1 << 20};
    return SUCCESS;
}

/* ---- clocks, temperature, power ---- */

API int nvmlDeviceGetClockInfo(Device *d, u32 domain, u32 *out)
{
    static const char *const keys[] = {"clk_gr", "clk_sm", "clk_mem", "clk_vid"};
    ENTER(d);
    return domain > 3 ? ERROR_INVALID_ARGUMENT : device_u32(d, keys[domain], "1500", out);
}

API int nvmlDeviceGetMaxClockInfo(Device *d, u32 domain, u32 *out)
{
    static const char *const keys[] = {"clkmax_gr", "clkmax_sm", "clkmax_mem", "clkmax_vid"};
    ENTER(d);
    return domain > 3 ? ERROR_INVALID_ARGUMENT : device_u32(d, keys[domain], "1980", out);
}

U64_CALL(nvmlDeviceGetCurrentClocksEventReasons, "reasons", "1")
U64_CALL(nvmlDeviceGetCurrentClocksThrottleReasons, "reasons", "1")

API int nvmlDeviceGetViolationStatus(Device *d, u32 policy, u64 *out)
{
    ENTER(d);
    char key[24];
    snprintf(key, sizeof key, "viol.%u", policy);
    out[0] = now_us();
    return device_u64(d, key, "0", &out[1]);
}

API int nvmlDeviceGetTemperature(Device *d, u32 sensor, u32 *out)
{
    (void)sensor;
    ENTER(d);
    return device_u32(d, "temp", "40", out);
}

API int nvmlDeviceGetTemperatureV(Device *d, int *out)
{
    ENTER(d);
    u32 celsius = 0;
    int rc = device_u32(d, "temp", "40", &celsius);
    if (!rc)
        out[2] = (int)celsius;
    return rc;
}

API int nvmlDeviceGetTemperatureThreshold(Device *d, u32 threshold, u32 *out)
{
    ENTER(d);
    return device_u32(d, threshold == 1 ? "temp_slow" : "temp_shut", "95", out);
}

U32_CALL(nvmlDeviceGetFanSpeed, "fan", NULL)
U32_CALL(nvmlDeviceGetNumFans, "fans", "0")
U32_CALL(nvmlDeviceGetPowerUsage, "power", "120000")
U32_CALL(nvmlDeviceGetPowerManagementLimit, "plimit", "700000")
U32_CALL(nvmlDeviceGetEnforcedPowerLimit, "plimit", "700000")
U64_CALL(nvmlDeviceGetTotalEnergyConsumption, "energy", "1000+120000/s")
U32_CALL(nvmlDeviceGetPerformanceState, "pstate", "0")
U32_CALL(nvmlDeviceGetPowerState, "pstate", "0")

/* ---- PCIe, NVLink, field values ---- */

/* Direction 0 is transmit, 1 receive; KB/s. */
API int nvmlDeviceGetPcieThroughput(Device *d, u32 direction, u32 *out)
{
    ENTER(d);
    return device_u32(d, direction ? "pcie_rx_kb" : "pcie_tx_kb", "1000", out);
}

U32_CALL(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen", "5")
U32_CALL(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max", "5")
U32_CALL(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", "16")
U32_CALL(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max", "16")
U32_CALL(nvmlDeviceGetPcieReplayCounter, "pcie_replay", "0")

API int nvmlDeviceGetNvLinkState(Device *d, u32 link, u32 *out)
{
    ENTER(d);
    u32 links = 0;
    device_u32(d, "nvlinks", "0", &links);
    if (link >= links)
        return ERROR_INVALID_ARGUMENT;
    *out = 1;
    return SUCCESS;
}

typedef struct {
    u32 id, scope;
    i64 timestamp, latency_us;
    u32 type, rc;
    union {
        double d;
        u32 u;
        unsigned long ul;
        u64 ull;
        i64 sll;
        int i;
        unsigned short us;
    } value;
} Field;

/* The key with the scope before the one without. */
static int field_number(const Device *d, const char *prefix, const Field *f, double *out)
{
    char key[32];
    snprintf(key, sizeof key, "%s.%u.%u", prefix, f->id, f->scope);
    int rc = device_number(d, key, NULL, out);
    if (rc != ERROR_NOT_SUPPORTED)
        return rc;
    snprintf(key, sizeof key, "%s.%u", prefix, f->id);
    return device_number(d, key, NULL, out);
}

/* A narrow type takes the low bits of the number: it wraps. */
static void store_field(Field *f, double x)
{
    u64 bits = x < 0 ? (u64)(i64)x : x < 0x1p64 ? (u64)x : ~0ull;
    switch (f->type) {
    case 0: f->value.d = x; break;
    case 1: f->value.u = (u32)bits; break;
    case 2: f->value.ul = bits; break;
    case 4: f->value.sll = (i64)bits; break;
    case 5: f->value.i = (int)bits; break;
    case 6: f->value.us = (unsigned short)bits; break;
    default: f->value.ull = bits;
    }
}

API int nvmlDeviceGetFieldValues(Device *d, int count, Field *fields)
{
    ENTER(d);
    for (int i = 0; i < count; i++) {
        double x = 0, type = 3;
        field_number(d, "fit", &fields[i], &type);
        fields[i].rc = (u32)field_number(d, "fi", &fields[i], &x);
        fields[i].timestamp = (i64)now_us();
        fields[i].latency_us = 1;
        fields[i].type = (u32)type;
        store_field(&fields[i], x);
    }
    return SUCCESS;
}

/* ---- ECC ---- */

API int nvmlDeviceGetEccMode(Device *d, u32 *current, u32 *pending)
{
    ENTER(d);
    int rc = device_u32(d, "ecc", "1", current);
    *pending = *current;
    return rc;
}

API int nvmlDeviceGetTotalEccErrors(Device *d, u32 type, u32 counter, u64 *out)
{
    ENTER(d);
    char key[24];
    snprintf(key, sizeof key, "ecc.%u.%u", type, counter);
    return device_u64(d, key, "0", out);
}

API int nvmlDeviceGetMemoryErrorCounter(Device *d, u32 type, u32 counter, u32 location, u64 *out)
{
    ENTER(d);
    char key[40];
    snprintf(key, sizeof key, "ecc.%u.%u.%u", type, counter, location);
    return device_u64(d, key, "0", out);
}

API int nvmlDeviceGetRemappedRows(Device *d, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed)
{
    ENTER(d);
    int rc = device_u32(d, "remap_cor", "0", corrected);
    if (!rc)
        rc = device_u32(d, "remap_unc", "0", uncorrected);
    if (!rc)
        rc = device_u32(d, "remap_pend", "0", pending);
    if (!rc)
        rc = device_u32(d, "remap_fail", "0", failed);
    return rc;
}

/* ---- processes ---- */

typedef struct {
    u32 pid;
    u64 memory;
    u32 gpu_instance, compute_instance;
} Process;

typedef struct {
    u32 pid;
    u64 timestamp;
    u32 sm, mem, enc, dec;
} ProcessUtilization;

/* Fills up to `size` of each array that is given; returns how many processes there are. */
static u32 list_processes(const Device *d, Process *processes, ProcessUtilization *utilization, u32 size)
{
    u32 count = 0;
    pthread_mutex_lock(&lock);
    const char *text = device_text(d, "procs");
    while (text && *text) {
        u32 pid;
        i64 memory = 0, sm = 0, mem = 0, gi = -1, ci = -1;
        if (sscanf(text, "%u:%lld:%lld:%lld:%lld:%lld", &pid, &memory, &sm, &mem, &gi, &ci) < 1)
            break;
        if (count < size && processes)
            processes[count] = (Process){pid, (u64)memory, (u32)gi, (u32)ci};
        if (count < size && utilization)
            utilization[count] = (ProcessUtilization){pid, now_us(), (u32)sm, (u32)mem, 0, 0};
        count++;
        if ((text = strchr(text, ',')))
            text++;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, u32 *count, Process *out)
{
    ENTER(d);
    u32 size = out ? *count : 0;
    *count = list_processes(d, out, NULL, size);
    return *count > size ? ERROR_INSUFFICIENT_SIZE : SUCCESS;
}

API int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *d, u32 *count, Process *out)
{
    (void)out;
    ENTER(d);
    *count = 0;
    return SUCCESS;
}

API int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device *d, u32 *count, Process *out)
{
    (void)out;
    ENTER(d);
    *count = 0;
    return SUCCESS;
}

API int nvmlDeviceGetProcessUtilization(Device *d, ProcessUtilization *out, u32 *count, u64 since_us)
{
    (void)since_us;
    ENTER(d);
    u32 size = out ? *count : 0;
    *count = list_processes(d, NULL, out, size);
    if (!*count)
        return ERROR_NOT_FOUND;
    return *count > size ? ERROR_INSUFFICIENT_SIZE : SUCCESS;
}

/* ---- GPM ---- */

enum { GPM_METRICS = 512 };

typedef struct {
    u64 taken_us;
    Device *device;
    double value[GPM_METRICS];
    int rc[GPM_METRICS];
} GpmSample;

typedef struct {
    u32 id, rc;
    double value;
    const char *short_name, *long_name, *unit;
} GpmMetric;

typedef struct {
    u32 version, count;
    GpmSample *first, *second;
    GpmMetric metrics[];
} GpmMetrics;

API int nvmlGpmQueryDeviceSupport(Device *d, u32 *out)
{
    ENTER(d);
    return device_u32(d, "gpm_supported", "1", &out[1]); /* out[0] is the version */
}

API int nvmlGpmSampleAlloc(GpmSample **out)
{
    ENTER(NULL);
    *out = calloc(1, sizeof **out);
    return SUCCESS;
}

API int nvmlGpmSampleFree(GpmSample *sample)
{
    ENTER(NULL);
    free(sample);
    return SUCCESS;
}

static int take_sample(Device *d, GpmSample *sample)
{
    sample->taken_us = now_us();
    sample->device = d;
    for (int i = 0; i < GPM_METRICS; i++) {
        char key[20];
        snprintf(key, sizeof key, "gpm.%d", i);
        sample->rc[i] = device_number(d, key, NULL, &sample->value[i]);
    }
    return SUCCESS;
}

API int nvmlGpmSampleGet(Device *d, GpmSample *sample)
{
    ENTER(d);
    u32 supported = 1;
    device_u32(d, "gpm_supported", "1", &supported);
    return supported ? take_sample(d, sample) : ERROR_NOT_SUPPORTED;
}

API int nvmlGpmMigSampleGet(Device *d, u32 gpu_instance, GpmSample *sample)
{
    ENTER(d);
    if (gpu_instance < 1 || gpu_instance > MAX_MIGS)
        return ERROR_INVALID_ARGUMENT;
    return take_sample(&devices[d->gpu][gpu_instance], sample);
}

API int nvmlGpmMetricsGet(GpmMetrics *get)
{
    const GpmSample *first = get->first, *second = get->second;
    ENTER(first ? first->device : NULL);
    if (get->version != 1)
        return ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!first || !second || !first->taken_us || !second->taken_us)
        return ERROR_INVALID_ARGUMENT;
    for (u32 i = 0; i < get->count; i++) {
        GpmMetric *m = &get->metrics[i];
        if (m->id >= GPM_METRICS) {
            m->rc = ERROR_INVALID_ARGUMENT;
            continue;
        }
        m->rc = (u32)(first->rc[m->id] ? first->rc[m->id] : second->rc[m->id]);
        if (!m->rc)
            m->value = (first->value[m->id] + second->value[m->id]) / 2;
    }
    return SUCCESS;
}

/* ---- MIG ---- */

API int nvmlDeviceGetMigMode(Device *d, u32 *current, u32 *pending)
{
    ENTER(d);
    if (d->mig)
        return ERROR_INVALID_ARGUMENT;
    if (setting("no_mig", 0))
        return ERROR_NOT_SUPPORTED;
    *current = *pending = mig_count(d) > 0;
    return SUCCESS;
}

API int nvmlDeviceGetMaxMigDeviceCount(Device *d, u32 *out)
{
    ENTER(d);
    *out = mig_count(d) ? 7 : 0;
    return SUCCESS;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, u32 index, Device **out)
{
    ENTER(d);
    if (index >= (u32)mig_count(d))
        return ERROR_NOT_FOUND;
    *out = &devices[d->gpu][index + 1];
    return SUCCESS;
}

API int nvmlDeviceIsMigDeviceHandle(Device *d, u32 *out)
{
    ENTER(d);
    *out = d->mig > 0;
    return SUCCESS;
}

API int nvmlDeviceGetGpuInstanceId(Device *d, u32 *out)
{
    ENTER(d);
    if (!d->mig)
        return ERROR_NOT_SUPPORTED;
    *out = (u32)d->mig;
    return SUCCESS;
}

API int nvmlDeviceGetComputeInstanceId(Device *d, u32 *out)
{
    ENTER(d);
    if (!d->mig)
        return ERROR_NOT_SUPPORTED;
    *out = 0;
    return SUCCESS;
}

API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *d, Device **out)
{
    ENTER(d);
    *out = &devices[d->gpu][0];
    return SUCCESS;
}

typedef struct {
    u32 multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    u64 memory_mib;
} Attributes;

API int nvmlDeviceGetAttributes_v2(Device *d, Attributes *out)
{
    ENTER(d);
    *out = (Attributes){.multiprocessors = 16, .gpu_slices = 1, .compute_slices = 1, .memory_mib = 9856};
    return SUCCESS;
}

/* ---- events ---- */

enum { EVENT_XID = 8 };

typedef struct {
    unsigned char wants_xid[MAX_GPUS];
} EventSet;

typedef struct {
    Device *device;
    u64 type, data;
    u32 gpu_instance, compute_instance;
} Event;

API int nvmlEventSetCreate(EventSet **out)
{
    ENTER(NULL);
    *out = calloc(1, sizeof **out);
    return SUCCESS;
}

API int nvmlEventSetFree(EventSet *set)
{
    ENTER(NULL);
    free(set);
    return SUCCESS;
}

U64_CALL(nvmlDeviceGetSupportedEventTypes, "events", "31")

API int nvmlDeviceRegisterEvents(Device *d, u64 types, EventSet *set)
{
    ENTER(d);
    set->wants_xid[d->gpu] = (types & EVENT_XID) != 0;
    return SUCCESS;
}

/* An event of a GPU that no set is registered for yet waits for the one that will be. */
static int next_event(const EventSet *set, Event *out)
{
    int found = 0;
    pthread_mutex_lock(&lock);
    read_file_if_changed();
    i64 sequence = setting("xid_seq", 0);
    i64 gpu = setting("xid_gpu", 0);
    if (sequence > xid_seen && gpu >= 0 && gpu < MAX_GPUS && set->wants_xid[gpu]) {
        xid_seen = sequence;
        *out = (Event){&devices[gpu][0], EVENT_XID, (u64)setting("xid", 79), ~0u, ~0u};
        found = 1;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

API int nvmlEventSetWait_v2(EventSet *set, Event *out, u32 timeout_ms)
{
    ENTER(NULL);
    for (u32 waited_ms = 0;; waited_ms += 5) {
        if (next_event(set, out))
            return SUCCESS;
        if (waited_ms >= timeout_ms)
            return ERROR_TIMEOUT;
        usleep(5000);
    }
}

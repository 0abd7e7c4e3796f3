// A stand-in for the CUDA driver's library, whose device memory is shared memory of the host. It
// lets every call be made, with its real signature, where there is no GPU; it knows nothing of CUDA.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

namespace {
struct Memory { uint64_t bytes; int descriptor; };
struct Handle { char reserved[64]; };
struct Handed { int process; int descriptor; uint64_t bytes; };
struct Event { int looks; };

std::map<uint64_t, Memory> memories;
std::map<uint64_t, uint64_t> mappings;
int contexts = 0;

enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_READY = 600 };
int in_context() { return contexts > 0 ? SUCCESS : INVALID_CONTEXT; }
}  // namespace

extern "C" {
// How a test makes "device" memory known.
void stand_in_memory(uint64_t base, uint64_t bytes, int descriptor) { memories[base] = {bytes, descriptor}; }
int stand_in_mappings() { return (int)mappings.size(); }

int cuInit(unsigned) { return SUCCESS; }
int cuGetErrorString(int status, const char** text) {
    *text = status == INVALID_CONTEXT ? "no context" : status == INVALID_HANDLE ? "bad handle" : "bad value";
    return SUCCESS;
}
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return ordinal == 0 ? SUCCESS : INVALID_VALUE; }
int cuDevicePrimaryCtxRetain(void** context, int) { *context = (void*)&contexts; return SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
int cuCtxPushCurrent_v2(void* context) {
    if (context != (void*)&contexts) return INVALID_CONTEXT;
    contexts++;
    return SUCCESS;
}
int cuCtxPopCurrent_v2(void** context) { *context = (void*)&contexts; contexts--; return SUCCESS; }

int cuMemGetAddressRange_v2(uint64_t* base, size_t* size, uint64_t address) {
    auto next = memories.upper_bound(address);
    if (in_context() || next == memories.begin()) return INVALID_VALUE;
    auto found = std::prev(next);
    if (address >= found->first + found->second.bytes) return INVALID_VALUE;
    *base = found->first;
    *size = found->second.bytes;
    return SUCCESS;
}
int cuIpcGetMemHandle(Handle* handle, uint64_t base) {
    if (in_context() || !memories.count(base)) return INVALID_VALUE;
    Handed handed{(int)getpid(), memories[base].descriptor, memories[base].bytes};
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &handed, sizeof handed);
    return SUCCESS;
}
int cuIpcOpenMemHandle_v2(uint64_t* address, Handle handle, unsigned flags) {
    Handed handed;
    std::memcpy(&handed, &handle, sizeof handed);
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", handed.process, handed.descriptor);
    int descriptor = in_context() || flags != 1 ? -1 : open(path, O_RDWR);
    if (descriptor < 0) return INVALID_HANDLE;
    void* memory = mmap(nullptr, handed.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (memory == MAP_FAILED) return INVALID_HANDLE;
    *address = (uint64_t)memory;
    mappings[*address] = handed.bytes;
    return SUCCESS;
}
int cuIpcCloseMemHandle(uint64_t address) {
    if (in_context() || !mappings.count(address)) return INVALID_VALUE;
    munmap((void*)address, mappings[address]);
    mappings.erase(address);
    return SUCCESS;
}

int cuMemcpyAsync(uint64_t target, uint64_t source, size_t bytes, void* stream) {
    if (in_context() || stream == nullptr) return INVALID_CONTEXT;
    std::memmove((void*)target, (const void*)source, bytes);
    return SUCCESS;
}
int cuStreamCreate(void** stream, unsigned) { *stream = new char; return in_context(); }
int cuStreamSynchronize(void*) { return in_context(); }
int cuStreamDestroy_v2(void* stream) { delete (char*)stream; return in_context(); }
int cuEventCreate(void** event, unsigned) { *event = new Event{0}; return in_context(); }
int cuEventRecord(void*, void* stream) { return stream == nullptr ? INVALID_CONTEXT : in_context(); }
// Ready when looked at for the second time, so that callers must come back.
int cuEventQuery(void* event) { return ((Event*)event)->looks++ ? in_context() : NOT_READY; }
int cuEventSynchronize(void*) { return in_context(); }
int cuEventDestroy_v2(void* event) { delete (Event*)event; return in_context(); }
}

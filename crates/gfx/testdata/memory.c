// Memory beyond hipMalloc, against HIP's C interface with no header of AMD's: pageable memory that HIP pins, registered
// host memory, a pool, managed memory, memory mapped at addresses reserved before, and copies between GPUs where there are
// two. Prints a line per step; exits with 1 at the first that is wrong.
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1 << 20, TO_DEVICE = 1, TO_HOST = 2, ON_DEVICE = 3 };

static void *hip;

static void *function(const char *name) {
  void *found = dlsym(hip, name);
  if (!found) {
    printf("%s is missing\n", name);
    exit(1);
  }
  return found;
}

#define CALL(name, types, ...) check(#name, ((int(*) types)function(#name))(__VA_ARGS__))

static void check(const char *what, int status) {
  if (status != 0) {
    printf("%s: %d\n", what, status);
    exit(1);
  }
}

static void copy(void *to, const void *from, size_t n, int kind) {
  CALL(hipMemcpy, (void *, const void *, size_t, int), to, from, n, kind);
}

static void *allocate(size_t n) {
  void *p = NULL;
  CALL(hipMalloc, (void **, size_t), &p, n);
  return p;
}

static void compare(const char *what, const unsigned *got, const unsigned *want) {
  for (int i = 0; i < N; i++) {
    if (got[i] != want[i]) {
      printf("%s: word %d is %u, not %u\n", what, i, got[i], want[i]);
      exit(1);
    }
  }
  printf("%s: right\n", what);
  fflush(stdout);
}

// The kernel driver's own list, as libraries read it that do not ask ROCr.
static int count_nodes(void) {
  DIR *nodes = opendir("/sys/class/kfd/kfd/topology/nodes");
  int n = 0;
  for (struct dirent *entry; nodes && (entry = readdir(nodes));) n += entry->d_name[0] >= '0' && entry->d_name[0] <= '9';
  if (nodes) closedir(nodes);
  FILE *id = fopen("/sys/class/kfd/kfd/topology/nodes/1/gpu_id", "r");
  if (!id) n = 0;
  if (id) fclose(id);
  return n;
}

// Memory that both sides use at one address, of a size that is no whole number of pages, and moved to the GPU and back.
static void managed(const unsigned *want) {
  const size_t bytes = N * sizeof(unsigned);
  unsigned *m = NULL, *device = allocate(bytes);
  CALL(hipMallocManaged, (void **, size_t, unsigned), (void **)&m, bytes + 100, 1);
  for (int i = 0; i < N; i++) m[i] = want[i];
  CALL(hipMemPrefetchAsync, (const void *, size_t, int, void *), m, bytes, 0, NULL);
  copy(device, m, bytes, ON_DEVICE);
  CALL(hipMemset, (void *, int, size_t), m, 0x5a, bytes);
  CALL(hipDeviceSynchronize, (void), );
  if (m[0] != 0x5a5a5a5a || m[N - 1] != 0x5a5a5a5a) {
    printf("managed memory: the host reads %x after the GPU wrote it\n", m[0]);
    exit(1);
  }
  copy(m, device, bytes, ON_DEVICE);
  CALL(hipDeviceSynchronize, (void), );
  compare("managed memory", m, want);
  CALL(hipFree, (void *), m);
}

// hipMemAllocationProp, hipMemAccessDesc.
struct property {
  int type, handle, location, id;
  void *win32;
  unsigned char flags[16];
};
struct access {
  int location, id, flags;
};

// Two pieces of memory side by side at addresses that were reserved before.
static void mapped(const unsigned *want, unsigned *back) {
  enum { PINNED = 1, DEVICE = 1, READ_WRITE = 3 };
  const size_t bytes = N * sizeof(unsigned);
  struct property property = {.type = PINNED, .location = DEVICE};
  struct access access = {DEVICE, 0, READ_WRITE};
  size_t granule = 0;
  CALL(hipMemGetAllocationGranularity, (size_t *, const struct property *, int), &granule, &property, 0);
  void *at = NULL, *half[2];
  CALL(hipMemAddressReserve, (void **, size_t, size_t, void *, unsigned long long), &at, bytes, 0, NULL, 0);
  for (int n = 0; n < 2; n++) {
    char *where = (char *)at + n * bytes / 2;
    CALL(hipMemCreate, (void **, size_t, const struct property *, unsigned long long), &half[n], bytes / 2, &property, 0);
    CALL(hipMemMap, (void *, size_t, size_t, void *, unsigned long long), where, bytes / 2, 0, half[n], 0);
    CALL(hipMemSetAccess, (void *, size_t, const struct access *, size_t), where, bytes / 2, &access, 1);
  }
  copy(at, want, bytes, TO_DEVICE);
  for (int i = 0; i < N; i++) back[i] = 0;
  copy(back, at, bytes, TO_HOST);
  compare("mapped memory", back, want);
  for (int n = 0; n < 2; n++) {
    CALL(hipMemUnmap, (void *, size_t), (char *)at + n * bytes / 2, bytes / 2);
    CALL(hipMemRelease, (void *), half[n]);
  }
  CALL(hipMemAddressFree, (void *, size_t), at, bytes);
}

int main(void) {
  hip = dlopen("libamdhip64.so.7", RTLD_NOW | RTLD_GLOBAL);
  if (!hip) {
    printf("%s\n", dlerror());
    return 1;
  }
  const size_t bytes = N * sizeof(unsigned);
  unsigned *a = malloc(bytes + 4096), *b = malloc(bytes + 4096);
  for (int i = 0; i < N; i++) a[i] = 2654435761u * i;
  int n_gpus = 0;
  CALL(hipGetDeviceCount, (int *), &n_gpus);
  printf("GPUs: %d\n", n_gpus);
  printf("nodes of the driver: %d\n", count_nodes());

  void *d = allocate(bytes);
  copy(d, a, bytes, TO_DEVICE);
  copy(b, d, bytes, TO_HOST);
  compare("pageable memory", b, a);

  void *seen = NULL;
  CALL(hipHostRegister, (void *, size_t, unsigned), a, bytes, 0);
  CALL(hipHostGetDevicePointer, (void **, void *, unsigned), &seen, a, 0);
  void *e = allocate(bytes);
  copy(e, seen, bytes, ON_DEVICE);
  CALL(hipDeviceSynchronize, (void), );
  for (int i = 0; i < N; i++) b[i] = 0;
  copy(b, e, bytes, TO_HOST);
  compare("registered memory", b, a);
  CALL(hipHostUnregister, (void *), a);

  void *p = NULL;
  CALL(hipMallocAsync, (void **, size_t, void *), &p, bytes, NULL);
  copy(p, d, bytes, ON_DEVICE);
  for (int i = 0; i < N; i++) b[i] = 0;
  copy(b, p, bytes, TO_HOST);
  compare("a pool's memory", b, a);
  CALL(hipFreeAsync, (void *, void *), p, NULL);

  managed(a);
  mapped(a, b);

  if (n_gpus > 1) {
    int may = 0;
    CALL(hipDeviceCanAccessPeer, (int *, int, int), &may, 0, 1);
    if (!may) {
      printf("no peer access\n");
      return 1;
    }
    CALL(hipDeviceEnablePeerAccess, (int, unsigned), 1, 0);
    CALL(hipSetDevice, (int), 1);
    CALL(hipDeviceEnablePeerAccess, (int, unsigned), 0, 0);
    void *other = allocate(bytes);
    CALL(hipMemcpyPeer, (void *, int, const void *, int, size_t), other, 1, d, 0, bytes);
    CALL(hipDeviceSynchronize, (void), );
    for (int i = 0; i < N; i++) b[i] = 0;
    copy(b, other, bytes, TO_HOST);
    compare("between GPUs", b, a);
  }
  printf("ok\n");
  return 0;
}

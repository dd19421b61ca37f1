// Memory beyond hipMalloc, against HIP's C interface with no header of AMD's: pageable memory that HIP pins, registered
// host memory, a pool, and copies between GPUs where there are two. Prints a line per step; exits with 1 at the first that
// is wrong.
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

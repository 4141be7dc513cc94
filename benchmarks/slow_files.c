/* Makes opening every file "...0.jpg" SAMEBATCH_SLOW_MS milliseconds slower: one file of ten of W7.

   Loaded before libc (LD_PRELOAD), it is the same for every loader, in whatever language it reads.
   gcc -O2 -shared -fPIC slow_files.c -o slow_files.so -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void wait_if_slow(const char *path) {
  size_t n = path ? strlen(path) : 0;
  if (n < 5 || strcmp(path + n - 5, "0.jpg") != 0) return;
  const char *given = getenv("SAMEBATCH_SLOW_MS");
  long ms = given ? atol(given) : 0;
  struct timespec left = {ms / 1000, ms % 1000 * 1000000L};
  while (nanosleep(&left, &left) != 0) {
  }
}

#define REAL(name) (*(void **)(&real) = dlsym(RTLD_NEXT, name))
#define MODE(last, mode)                                \
  int mode = 0;                                         \
  if (flags & (O_CREAT | O_TMPFILE)) {                  \
    va_list rest;                                       \
    va_start(rest, last);                               \
    mode = va_arg(rest, int);                           \
    va_end(rest);                                       \
  }

int open(const char *path, int flags, ...) {
  MODE(flags, mode)
  int (*real)(const char *, int, ...);
  REAL("open");
  wait_if_slow(path);
  return real(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
  MODE(flags, mode)
  int (*real)(const char *, int, ...);
  REAL("open64");
  wait_if_slow(path);
  return real(path, flags, mode);
}
int openat(int at, const char *path, int flags, ...) {
  MODE(flags, mode)
  int (*real)(int, const char *, int, ...);
  REAL("openat");
  wait_if_slow(path);
  return real(at, path, flags, mode);
}
int openat64(int at, const char *path, int flags, ...) {
  MODE(flags, mode)
  int (*real)(int, const char *, int, ...);
  REAL("openat64");
  wait_if_slow(path);
  return real(at, path, flags, mode);
}
FILE *fopen(const char *path, const char *how) {
  FILE *(*real)(const char *, const char *);
  REAL("fopen");
  wait_if_slow(path);
  return real(path, how);
}
FILE *fopen64(const char *path, const char *how) {
  FILE *(*real)(const char *, const char *);
  REAL("fopen64");
  wait_if_slow(path);
  return real(path, how);
}

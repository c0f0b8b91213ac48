/* The bare loop of bare.py in C: the same calls in the same order, so that one sees what Python costs.
 *
 * bare FOLDER GROUP GROUPS BYTES: publish, then fetch and remove GROUPS times GROUP messages of BYTES bytes. Prints how
 * long each of the two took, in seconds. FOLDER is there and empty.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

enum { NAME = 160 };

static int folder_new, folder_queue, folder_delay, folder_remove;

static void must(int result, const char *what) {
    if (result < 0)
        err(1, "%s", what);
}

static int make_folder(const char *name) {
    must(mkdir(name, 0700), name);
    int handle = open(name, O_RDONLY | O_DIRECTORY);
    must(handle, name);
    return handle;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void name_of(char *name, const char *prefix, long number, const char *suffix) {
    snprintf(name, NAME, "%s00000000-0000-1000-8000-%012lx%s", prefix, number, suffix);
}

static void publish(long first, long count, const char *body, size_t size) {
    char from[NAME], to[NAME], sum[64];
    int length = snprintf(sum, sizeof sum, "%zu:01234567", size);
    for (long number = first; number < first + count; number++) {
        name_of(from, "q:", number, "");
        int file = openat(folder_new, from, O_CREAT | O_EXCL | O_WRONLY, 0600);
        must(file, from);
        must(fsetxattr(file, "user.mq.sum", sum, length, 0), "fsetxattr");
        if (write(file, body, size) != (ssize_t)size)
            err(1, "write");
        must(close(file), "close");
    }
    for (long number = first; number < first + count; number++) {
        name_of(from, "q:", number, "");
        name_of(to, "", number, "");
        must(renameat(folder_new, from, folder_queue, to), "renameat");
    }
    must(syncfs(folder_new), "syncfs");
}

static void move(long first, long count, int source, const char *before, const char *tail, int target, const char *end) {
    char from[NAME], to[NAME];
    for (long number = first; number < first + count; number++) {
        name_of(from, before, number, tail);
        name_of(to, "q:", number, end);
        must(renameat(source, from, target, to), "renameat");
    }
    must(fsync(target), "fsync");
    must(fsync(source), "fsync");
}

static void consume(long first, long count, char *body, size_t size) {
    static const char leased[] = ",d1700000000000,r1,c0123456789abcdef";
    char name[NAME], sum[64];
    move(first, count, folder_queue, "", "", folder_delay, leased);
    for (long number = first; number < first + count; number++) {
        name_of(name, "q:", number, leased);
        int file = openat(folder_delay, name, O_RDONLY);
        must(file, name);
        must((int)fgetxattr(file, "user.mq.sum", sum, sizeof sum), "fgetxattr");
        if (read(file, body, size + 1) != (ssize_t)size)
            err(1, "read");
        must(close(file), "close");
    }
    move(first, count, folder_delay, "q:", leased, folder_remove, "");
    for (long number = first; number < first + count; number++) {
        name_of(name, "q:", number, "");
        must(unlinkat(folder_remove, name, 0), "unlinkat");
    }
}

int main(int count, char **words) {
    if (count != 5)
        errx(2, "usage: bare FOLDER GROUP GROUPS BYTES");
    long group = atol(words[2]), groups = atol(words[3]);
    size_t size = strtoul(words[4], NULL, 10);
    char *body = malloc(size + 1);
    if (body == NULL)
        err(1, "malloc");
    memset(body, 'x', size + 1);
    must(chdir(words[1]), words[1]);
    folder_new = make_folder("new");
    folder_queue = make_folder("queue");
    folder_delay = make_folder("delay");
    folder_remove = make_folder("remove");
    double start = now();
    for (long number = 0; number < groups; number++)
        publish(number * group, group, body, size);
    double published = now();
    sync();
    double resumed = now();
    for (long number = 0; number < groups; number++)
        consume(number * group, group, body, size);
    printf("%.6f %.6f\n", published - start, now() - resumed);
    return 0;
}

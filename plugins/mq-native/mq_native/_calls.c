/* The system calls of a batch of small files, one after another, without Python's lock.
 *
 * A store that calls the kernel file by file lets go of the interpreter's lock and takes it again at each call, and
 * whoever has it meanwhile keeps it for longer than the call took. Here a whole batch is one call: its steps are
 * read into memory of our own, done without the lock, and answered with a number each.
 *
 * Nothing is decided here. What did not succeed has changed nothing, and is the caller's to do again or to report.
 */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define OPEN_NEW (O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW)
#define OPEN_READ (O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
#define SUM "user.mq.sum"
#define ATTRIBUTES "user.mq.attributes"
#define ATTRIBUTE_ROOM 1024

enum kind { WRITE = 0, RENAME = 1, UNLINK = 2 };

typedef struct {
    enum kind kind;
    const char *path;       /* of the file, or where it is moved from */
    const char *target;     /* RENAME: where to */
    const char *data;       /* WRITE: what it holds */
    Py_ssize_t size;
    const char *sum;        /* WRITE: user.mq.sum */
    Py_ssize_t sum_size;
    const char *attributes; /* WRITE: user.mq.attributes; none when empty */
    Py_ssize_t attributes_size;
    int result;             /* WRITE: an open file, or 0 when it is to be closed; -errno for all */
} step;

static int write_all(int fd, const char *data, Py_ssize_t size)
{
    while (size > 0) {
        ssize_t written = write(fd, data, (size_t)size);
        if (written < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        if (written == 0)
            return -EIO;
        data += written;
        size -= written;
    }
    return 0;
}

/* The checksum is set before the first byte, so that a torn file can be told from a whole one. */
static int fill(int fd, const step *file)
{
    if (file->attributes_size && fsetxattr(fd, ATTRIBUTES, file->attributes, (size_t)file->attributes_size, 0) != 0)
        return -errno;
    if (fsetxattr(fd, SUM, file->sum, (size_t)file->sum_size, 0) != 0)
        return -errno;
    return write_all(fd, file->data, file->size);
}

static int write_new(const step *file, int keep)
{
    int fd = open(file->path, OPEN_NEW, 0600);
    if (fd < 0)
        return -errno;
    int failed = fill(fd, file);
    if (failed) {
        close(fd);
        unlink(file->path);
        return failed;
    }
    if (keep)
        return fd;
    close(fd);
    return 0;
}

static void do_step(step *todo, int keep)
{
    switch (todo->kind) {
    case WRITE:
        todo->result = write_new(todo, keep);
        break;
    case RENAME:
        todo->result = renameat2(AT_FDCWD, todo->path, AT_FDCWD, todo->target, RENAME_NOREPLACE) ? -errno : 0;
        break;
    case UNLINK:
        todo->result = unlink(todo->path) ? -errno : 0;
        break;
    }
}

static int text_of(PyObject *item, const char **text)
{
    Py_ssize_t size;
    *text = PyUnicode_AsUTF8AndSize(item, &size);
    if (*text == NULL)
        return -1;
    if ((Py_ssize_t)strlen(*text) != size) {
        PyErr_SetString(PyExc_ValueError, "embedded null character");
        return -1;
    }
    return 0;
}

static int bytes_of(PyObject *item, const char **data, Py_ssize_t *size)
{
    return PyBytes_AsStringAndSize(item, (char **)data, size);
}

/* A step as Python gives it: (path, data, sum, attributes), (path, target) or (path,). */
static int parse(PyObject *given, step *parsed)
{
    Py_ssize_t length = PyTuple_Check(given) ? PyTuple_Size(given) : 0;
    memset(parsed, 0, sizeof *parsed);
    if (length != 4 && length != 2 && length != 1) {
        PyErr_SetString(PyExc_TypeError, "a step is (path, data, sum, attributes), (path, target) or (path,)");
        return -1;
    }
    if (text_of(PyTuple_GetItem(given, 0), &parsed->path) < 0)
        return -1;
    if (length == 1) {
        parsed->kind = UNLINK;
        return 0;
    }
    if (length == 2) {
        parsed->kind = RENAME;
        return text_of(PyTuple_GetItem(given, 1), &parsed->target);
    }
    parsed->kind = WRITE;
    if (bytes_of(PyTuple_GetItem(given, 1), &parsed->data, &parsed->size) < 0 ||
        bytes_of(PyTuple_GetItem(given, 2), &parsed->sum, &parsed->sum_size) < 0)
        return -1;
    return bytes_of(PyTuple_GetItem(given, 3), &parsed->attributes, &parsed->attributes_size);
}

static PyObject *results_of(const step *steps, Py_ssize_t count)
{
    PyObject *results = PyList_New(count);
    for (Py_ssize_t i = 0; results != NULL && i < count; i++) {
        PyObject *result = PyLong_FromLong(steps[i].result);
        if (result == NULL || PyList_SetItem(results, i, result) < 0)
            Py_CLEAR(results);
    }
    return results;
}

/* Tells a reader of a pipe how many steps are done, and when that was. Fewer bytes than a pipe writes as one. */
static void tell(int fd, long long count)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct { int64_t count; double at; } said = {count, (double)now.tv_sec + (double)now.tv_nsec * 1e-9};
    while (write(fd, &said, sizeof said) < 0 && errno == EINTR)
        ;
}

/* Does the steps. After `every` so many, as long as none was refused, it tells of them, with `before` more. */
static PyObject *do_all(PyObject *given, int keep, int fd, Py_ssize_t every, long long before)
{
    PyObject *results = NULL;
    /* A tuple of our own keeps every step, and so what it points at, alive and unchanged. */
    PyObject *kept = PyList_AsTuple(given);
    if (kept == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_Size(kept);
    step *steps = PyMem_Calloc((size_t)count + 1, sizeof *steps);
    if (steps == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (parse(PyTuple_GetItem(kept, i), &steps[i]) < 0)
            goto done;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        do_step(&steps[i], keep);
        if (steps[i].result < 0)
            every = 0;
        if (every > 0 && (i + 1) % every == 0 && i + 1 < count)
            tell(fd, before + i + 1);
    }
    Py_END_ALLOW_THREADS
    results = results_of(steps, count);
done:
    PyMem_Free(steps);
    Py_DECREF(kept);
    return results;
}

static PyObject *do_steps(PyObject *module, PyObject *args)
{
    PyObject *given;
    int keep;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!p:do_steps", &PyList_Type, &given, &keep))
        return NULL;
    return do_all(given, keep, -1, 0, 0);
}

static PyObject *do_steps_telling(PyObject *module, PyObject *args)
{
    PyObject *given;
    int fd;
    Py_ssize_t every;
    long long before;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!inL:do_steps_telling", &PyList_Type, &given, &fd, &every, &before))
        return NULL;
    return do_all(given, 0, fd, every, before);
}

typedef struct {
    const char *path;
    char *data; /* of size bytes, from malloc */
    off_t size;
    char sum[ATTRIBUTE_ROOM];
    ssize_t sum_size;
    char attributes[ATTRIBUTE_ROOM];
    ssize_t attributes_size; /* read where the sum ends with an a: there are some */
    int error;        /* not to be read in this way */
} file;

static int read_all(int fd, char *data, off_t size)
{
    off_t found = 0;
    while (found < size) {
        ssize_t more = read(fd, data + found, (size_t)(size - found));
        if (more < 0 && errno == EINTR)
            continue;
        if (more < 0)
            return errno;
        if (more == 0)
            return ENODATA;
        found += more;
    }
    return 0;
}

static int read_open(int fd, file *wanted, off_t largest)
{
    struct stat status;
    if (fstat(fd, &status) != 0)
        return errno;
    if (!S_ISREG(status.st_mode) || status.st_size > largest)
        return EFBIG;
    wanted->size = status.st_size;
    wanted->sum_size = fgetxattr(fd, SUM, wanted->sum, sizeof wanted->sum);
    if (wanted->sum_size <= 0)
        return ENODATA;
    if (wanted->sum_size > 2 && memcmp(wanted->sum + wanted->sum_size - 2, ":a", 2) == 0) {
        wanted->attributes_size = fgetxattr(fd, ATTRIBUTES, wanted->attributes, sizeof wanted->attributes);
        if (wanted->attributes_size < 0)
            return errno;
    }
    wanted->data = malloc((size_t)wanted->size + 1);
    return wanted->data == NULL ? ENOMEM : read_all(fd, wanted->data, wanted->size);
}

static void read_file(file *wanted, off_t largest)
{
    int fd = open(wanted->path, OPEN_READ);
    if (fd < 0) {
        wanted->error = errno;
        return;
    }
    wanted->error = read_open(fd, wanted, largest);
    close(fd);
}

static PyObject *found_of(const file *files, Py_ssize_t count)
{
    PyObject *results = PyList_New(count);
    for (Py_ssize_t i = 0; results != NULL && i < count; i++) {
        PyObject *result;
        if (files[i].error)
            result = PyLong_FromLong(files[i].error);
        else
            result = Py_BuildValue("(y#y#y#)", files[i].data, (Py_ssize_t)files[i].size, files[i].sum,
                                   (Py_ssize_t)files[i].sum_size, files[i].attributes,
                                   (Py_ssize_t)files[i].attributes_size);
        if (result == NULL || PyList_SetItem(results, i, result) < 0)
            Py_CLEAR(results);
    }
    return results;
}

static PyObject *read_files(PyObject *module, PyObject *args)
{
    PyObject *given, *results = NULL;
    Py_ssize_t largest;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!n:read_files", &PyList_Type, &given, &largest))
        return NULL;
    PyObject *kept = PyList_AsTuple(given);
    if (kept == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_Size(kept);
    file *files = PyMem_Calloc((size_t)count + 1, sizeof *files);
    if (files == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (text_of(PyTuple_GetItem(kept, i), &files[i].path) < 0)
            goto done;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++)
        read_file(&files[i], (off_t)largest);
    Py_END_ALLOW_THREADS
    results = found_of(files, count);
done:
    for (Py_ssize_t i = 0; files != NULL && i < count; i++)
        free(files[i].data);
    PyMem_Free(files);
    Py_DECREF(kept);
    return results;
}

/* One page: messages of one folder, each whole, one behind another. */

#define ID_SIZE 36
#define SUM_ROOM 48

typedef struct {
    char id[ID_SIZE + 1]; /* made of a key; empty where the name was given */
    const char *name;     /* as given, or id */
    Py_ssize_t said;      /* where its attributes begin in the page's */
    Py_ssize_t said_size;
    uint32_t end;         /* of its body in the page's */
} row;

typedef struct {
    char *data; /* of room bytes, from malloc */
    Py_ssize_t size;
    Py_ssize_t room;
} buffer;

typedef struct {
    row *rows;
    Py_ssize_t count; /* of names */
    Py_ssize_t taken; /* of them, from the first on */
    buffer bodies;
    buffer said;
    Py_ssize_t most;    /* bytes of both together */
    Py_ssize_t largest; /* bytes of one body */
} page;

static uint32_t crc_tables[8][256];

static void make_crc_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        crc_tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (uint32_t byte = 0; byte < 256; byte++)
            crc_tables[table][byte] = crc_tables[table - 1][byte] >> 8 ^ crc_tables[0][crc_tables[table - 1][byte] & 255];
}

/* CRC-32 as zlib has it, eight bytes a step. */
static uint32_t crc_of(const unsigned char *data, Py_ssize_t size)
{
    uint32_t crc = 0xffffffffu;
    for (; size >= 8; size -= 8, data += 8) {
        crc ^= (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        crc = crc_tables[7][crc & 255] ^ crc_tables[6][crc >> 8 & 255] ^ crc_tables[5][crc >> 16 & 255] ^
              crc_tables[4][crc >> 24] ^ crc_tables[3][data[4]] ^ crc_tables[2][data[5]] ^ crc_tables[1][data[6]] ^
              crc_tables[0][data[7]];
    }
    for (; size > 0; size--, data++)
        crc = crc >> 8 ^ crc_tables[0][(crc ^ *data) & 255];
    return ~crc;
}

static int make_room(buffer *buffer, Py_ssize_t more)
{
    Py_ssize_t wanted = buffer->size + more, room = buffer->room ? buffer->room : 1 << 16;
    if (wanted <= buffer->room)
        return 0;
    while (room < wanted)
        room *= 2;
    char *data = realloc(buffer->data, (size_t)room);
    if (data == NULL)
        return ENOMEM;
    buffer->data = data;
    buffer->room = room;
    return 0;
}

/* The length that a sum begins with; -1 where it begins with something else, or that is longer than any. */
static Py_ssize_t announced(const char *sum)
{
    Py_ssize_t size = 0;
    int digits = 0;
    for (; sum[digits] >= '0' && sum[digits] <= '9'; digits++) {
        if (digits == 15)
            return -1;
        size = 10 * size + (sum[digits] - '0');
    }
    return digits && sum[digits] == ':' ? size : -1;
}

/* Whether the sum is that of the bytes, and how it ends: 1 without attributes, 2 with some, 0 for any other sum. */
static int matches(const char *sum, Py_ssize_t sum_size, const char *data, Py_ssize_t size)
{
    char whole[SUM_ROOM];
    int length = snprintf(whole, sizeof whole, "%zd:%08x", size, (unsigned)crc_of((const unsigned char *)data, size));
    if (sum_size < length || memcmp(sum, whole, (size_t)length) != 0)
        return 0;
    if (sum_size == length)
        return 1;
    return sum_size == length + 2 && memcmp(sum + length, ":a", 2) == 0 ? 2 : 0;
}

static Py_ssize_t read_up_to(int fd, char *data, Py_ssize_t most)
{
    Py_ssize_t found = 0;
    while (found < most) {
        ssize_t more = read(fd, data + found, (size_t)(most - found));
        if (more < 0 && errno == EINTR)
            continue;
        if (more < 0)
            return -1;
        if (more == 0)
            break;
        found += more;
    }
    return found;
}

/* Whether an open file was added to the page: it is whole, and there was room. */
static int add_open(page *page, row *row, int fd)
{
    char sum[SUM_ROOM];
    ssize_t sum_size = fgetxattr(fd, SUM, sum, sizeof sum - 1);
    if (sum_size <= 0)
        return 0; /* also what is no plain file: nothing else has such an attribute, and can be read */
    sum[sum_size] = 0;
    Py_ssize_t size = announced(sum), used = page->bodies.size + page->said.size;
    if (size < 0 || size > page->largest || size > page->most - used || make_room(&page->bodies, size + 1) != 0)
        return 0;
    char *data = page->bodies.data + page->bodies.size;
    if (read_up_to(fd, data, size + 1) != size)
        return 0;
    int kind = matches(sum, sum_size, data, size);
    if (kind == 0)
        return 0;
    row->said = page->said.size;
    if (kind == 2) {
        if (make_room(&page->said, ATTRIBUTE_ROOM) != 0)
            return 0;
        row->said_size = fgetxattr(fd, ATTRIBUTES, page->said.data + page->said.size, ATTRIBUTE_ROOM);
        if (row->said_size <= 0 || row->said_size > page->most - used - size)
            return 0;
    }
    page->said.size += row->said_size;
    page->bodies.size += size;
    row->end = (uint32_t)page->bodies.size;
    return 1;
}

static void fill_page(page *page, int folder)
{
    for (; page->taken < page->count; page->taken++) {
        row *row = &page->rows[page->taken];
        int fd = openat(folder, row->name, OPEN_READ);
        if (fd < 0)
            return;
        int added = add_open(page, row, fd);
        close(fd);
        if (!added)
            return;
    }
}

/* An id of its key: 60 bits of time, and the 64 bits of its last two groups of digits. */
static void write_id(char *id, const unsigned char *key)
{
    static const char digits[] = "0123456789abcdef";
    /* Which of the key's 32 digits comes where; the first is 0. */
    static const unsigned char places[ID_SIZE] = {8,  9,  10, 11, 12, 13, 14, 15, 32, 4,  5,  6,  7,  32, 33, 1,  2,  3,
                                                  32, 16, 17, 18, 19, 32, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
    for (int i = 0; i < ID_SIZE; i++) {
        int place = places[i];
        if (place >= 32)
            id[i] = place == 32 ? '-' : '1';
        else
            id[i] = digits[key[place / 2] >> (place % 2 ? 0 : 4) & 15];
    }
    id[ID_SIZE] = 0;
}

/* A name as Python gives it: text that begins with an id, or the 16 bytes of a key. */
static int parse_name(PyObject *given, row *row)
{
    const char *key;
    Py_ssize_t size;
    if (PyUnicode_Check(given)) {
        if (text_of(given, &row->name) < 0)
            return -1;
        if (strlen(row->name) < ID_SIZE || strchr(row->name, '/') != NULL) {
            PyErr_SetString(PyExc_ValueError, "a name begins with an id, and has no slash");
            return -1;
        }
        return 0;
    }
    if (bytes_of(given, &key, &size) < 0)
        return -1;
    if (size != 16) {
        PyErr_SetString(PyExc_ValueError, "a key has 16 bytes");
        return -1;
    }
    write_id(row->id, (const unsigned char *)key);
    row->name = row->id;
    return 0;
}

static int digit_of(char digit)
{
    return digit >= 'a' ? digit - 'a' + 10 : digit - '0';
}

/* When an id was made, from its text. */
static uint64_t time_of(const char *id)
{
    static const unsigned char places[15] = {15, 16, 17, 9, 10, 11, 12, 0, 1, 2, 3, 4, 5, 6, 7};
    uint64_t time = 0;
    for (int i = 0; i < 15; i++)
        time = time << 4 | (uint64_t)(digit_of(id[places[i]]) & 15);
    return time;
}

static void put_number(char *place, uint64_t number, int size)
{
    for (int i = 0; i < size; i++)
        place[i] = (char)(number >> 8 * i);
}

static PyObject *attributes_of(const page *page)
{
    PyObject *all = PyDict_New();
    for (Py_ssize_t i = 0; all != NULL && i < page->taken; i++) {
        const row *row = &page->rows[i];
        if (row->said_size == 0)
            continue;
        PyObject *place = PyLong_FromSsize_t(i), *said = PyBytes_FromStringAndSize(page->said.data + row->said, row->said_size);
        if (place == NULL || said == NULL || PyDict_SetItem(all, place, said) < 0)
            Py_CLEAR(all);
        Py_XDECREF(place);
        Py_XDECREF(said);
    }
    return all;
}

static PyObject *page_of(const page *page, uint32_t base)
{
    Py_ssize_t count = page->taken;
    char *columns = malloc((size_t)count * (ID_SIZE + 8 + 4) + 1);
    if (columns == NULL)
        return PyErr_NoMemory();
    char *times = columns, *ends = times + 8 * count, *ids = ends + 4 * count;
    for (Py_ssize_t i = 0; i < count; i++) {
        memcpy(ids + ID_SIZE * i, page->rows[i].name, ID_SIZE);
        put_number(times + 8 * i, time_of(page->rows[i].name), 8);
        put_number(ends + 4 * i, base + page->rows[i].end, 4);
    }
    PyObject *attributes = attributes_of(page), *result = NULL;
    if (attributes != NULL)
        result = Py_BuildValue("(ny#y#y#y#N)", count, times, 8 * count, ends, 4 * count, ids, ID_SIZE * count,
                               page->bodies.data ? page->bodies.data : "", page->bodies.size, attributes);
    free(columns);
    return result;
}

static PyObject *read_columns(PyObject *module, PyObject *args)
{
    PyObject *given, *result = NULL;
    const char *path;
    unsigned int base;
    page page = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "sO!Inn:read_columns", &path, &PyList_Type, &given, &base, &page.most, &page.largest))
        return NULL;
    PyObject *kept = PyList_AsTuple(given);
    if (kept == NULL)
        return NULL;
    page.count = PyTuple_Size(kept);
    page.rows = PyMem_Calloc((size_t)page.count + 1, sizeof *page.rows);
    if (page.rows == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < page.count; i++)
        if (parse_name(PyTuple_GetItem(kept, i), &page.rows[i]) < 0)
            goto done;
    Py_BEGIN_ALLOW_THREADS
    int folder = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        fill_page(&page, folder);
        close(folder);
    }
    Py_END_ALLOW_THREADS
    result = page_of(&page, base);
done:
    free(page.bodies.data);
    free(page.said.data);
    PyMem_Free(page.rows);
    Py_DECREF(kept);
    return result;
}

static PyMethodDef methods[] = {
    {"do_steps", do_steps, METH_VARARGS, "Write, move and unlink files, in order, without Python's lock."},
    {"do_steps_telling", do_steps_telling, METH_VARARGS, "As do_steps, telling on the way how many are done."},
    {"read_files", read_files, METH_VARARGS, "Read small files, without Python's lock."},
    {"read_columns", read_columns, METH_VARARGS, "Read messages of one folder, one behind another, without Python's lock."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_calls", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__calls(void)
{
    make_crc_tables();
    return PyModuleDef_Init(&module);
}

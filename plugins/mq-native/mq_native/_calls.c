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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
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

static PyObject *do_steps(PyObject *module, PyObject *args)
{
    PyObject *given, *results = NULL;
    int keep;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!p:do_steps", &PyList_Type, &given, &keep))
        return NULL;
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
    for (Py_ssize_t i = 0; i < count; i++)
        do_step(&steps[i], keep);
    Py_END_ALLOW_THREADS
    results = results_of(steps, count);
done:
    PyMem_Free(steps);
    Py_DECREF(kept);
    return results;
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

static PyMethodDef methods[] = {
    {"do_steps", do_steps, METH_VARARGS, "Write, move and unlink files, in order, without Python's lock."},
    {"read_files", read_files, METH_VARARGS, "Read small files, without Python's lock."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_calls", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__calls(void)
{
    return PyModuleDef_Init(&module);
}

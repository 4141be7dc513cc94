/* Decodes a rectangle of a JPEG file: rows above it are skipped, columns beside it are never transformed.
 *
 * The library is the one that Pillow already has in this process, found by name at run time (`bind`), so a
 * rectangle's bytes are those of Pillow's own decoding, and this file needs headers but no library to link.
 * Its layout of structures is version 6b's ("62"), which Pillow's wheels ship; the library compares version and
 * sizes itself and refuses others, which `bind` reports.
 *
 * What is not a plain file (several scans, 4 colours, 12 bits, arithmetic codes, any warning of the library,
 * an end that is not the end-of-image marker) is left to Pillow: the answer is then None. So broken files fail
 * as they do there.
 *
 * libjpeg calls error_exit where it cannot go on; its default ends the process. Ours jumps back. Nothing of
 * Python is touched between setjmp and that jump, and the interpreter's lock is not held.
 *
 * Source: libjpeg-turbo's libjpeg.txt, "Partial image decompression"; usage.txt. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <dlfcn.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jconfig.h>
#define JCONFIG_INCLUDED
#undef JPEG_LIB_VERSION
#define JPEG_LIB_VERSION 62
#include <jpeglib.h>
#include <jerror.h>

static struct {
    struct jpeg_error_mgr *(*std_error)(struct jpeg_error_mgr *);
    void (*create)(j_decompress_ptr, int, size_t);
    void (*destroy)(j_decompress_ptr);
    void (*mem_src)(j_decompress_ptr, const unsigned char *, unsigned long);
    int (*read_header)(j_decompress_ptr, boolean);
    boolean (*has_multiple_scans)(j_decompress_ptr);
    boolean (*start)(j_decompress_ptr);
    void (*crop_scanline)(j_decompress_ptr, JDIMENSION *, JDIMENSION *);
    JDIMENSION (*skip_scanlines)(j_decompress_ptr, JDIMENSION);
    JDIMENSION (*read_scanlines)(j_decompress_ptr, JSAMPARRAY, JDIMENSION);
} jpeg;

static const struct {
    const char *name;
    void **place;
} SYMBOLS[] = {
    {"jpeg_std_error", (void **)&jpeg.std_error},
    {"jpeg_CreateDecompress", (void **)&jpeg.create},
    {"jpeg_destroy_decompress", (void **)&jpeg.destroy},
    {"jpeg_mem_src", (void **)&jpeg.mem_src},
    {"jpeg_read_header", (void **)&jpeg.read_header},
    {"jpeg_has_multiple_scans", (void **)&jpeg.has_multiple_scans},
    {"jpeg_start_decompress", (void **)&jpeg.start},
    {"jpeg_crop_scanline", (void **)&jpeg.crop_scanline},
    {"jpeg_skip_scanlines", (void **)&jpeg.skip_scanlines},
    {"jpeg_read_scanlines", (void **)&jpeg.read_scanlines},
};

/* Where colours are stored for 2 or less places in a row, the library repeats them instead of interpolating;
 * so it must not be asked for so few where the image has more. */
enum { NARROWEST = 32 };

enum { DONE = 0, NOT_PLAIN = 1, FAILED = -1 };

/* What one call works on. The error manager comes first: libjpeg hands it back to our handlers. */
typedef struct {
    struct jpeg_error_mgr errors;
    jmp_buf back;
    char message[JMSG_LENGTH_MAX];
    struct jpeg_decompress_struct info;
    unsigned char *row;  /* one decoded row, wider than the rectangle */
} Work;

static void fail(j_common_ptr info) {
    Work *work = (Work *)info->err;
    info->err->format_message(info, work->message);
    longjmp(work->back, 1);
}

static void count(j_common_ptr info, int level) {
    if (level < 0) info->err->num_warnings++;
}

static void say_nothing(j_common_ptr info) { (void)info; }

/* Make the decoder and read the header. Call between setjmp(work->back) and `end`. */
static void begin(Work *work, const unsigned char *data, size_t nbytes) {
    jpeg.create(&work->info, JPEG_LIB_VERSION, sizeof work->info);
    jpeg.mem_src(&work->info, data, (unsigned long)nbytes);
    jpeg.read_header(&work->info, TRUE);
}

static int plain(Work *work) {
    j_decompress_ptr info = &work->info;
    int grey = info->num_components == 1 && info->jpeg_color_space == JCS_GRAYSCALE;
    int colour = info->num_components == 3 &&
                 (info->jpeg_color_space == JCS_YCbCr || info->jpeg_color_space == JCS_RGB);
    return (grey || colour) && info->data_precision == 8 && !info->arith_code &&
           !info->progressive_mode && !jpeg.has_multiple_scans(info) && !work->errors.num_warnings;
}

static void prepare(Work *work) {
    memset(work, 0, sizeof *work);
    work->info.err = jpeg.std_error(&work->errors);
    work->errors.error_exit = fail;
    work->errors.emit_message = count;
    work->errors.output_message = say_nothing;
}

static int end(Work *work, int outcome) {
    jpeg.destroy(&work->info);
    free(work->row);
    return outcome;
}

static int look(Work *work, const unsigned char *data, size_t nbytes, unsigned shape[3]) {
    prepare(work);
    if (setjmp(work->back)) return end(work, FAILED);
    begin(work, data, nbytes);
    shape[0] = work->info.image_height;
    shape[1] = work->info.image_width;
    shape[2] = (unsigned)work->info.num_components;
    return end(work, plain(work) ? DONE : NOT_PLAIN);
}

static JDIMENSION least(JDIMENSION a, JDIMENSION b) { return a < b ? a : b; }

/* Samples left and right of a column, and above and below a row, reach into its interpolated colours: so one
 * pixel more is decoded on every side. The library moves `first` back to where a block begins. */
static int decode(Work *work, const unsigned char *data, size_t nbytes, const unsigned box[4],
                  unsigned channels, unsigned char *out) {
    unsigned top = box[0], left = box[1], height = box[2], width = box[3];
    prepare(work);
    if (setjmp(work->back)) return end(work, FAILED);
    begin(work, data, nbytes);
    j_decompress_ptr info = &work->info;
    if (!plain(work) || top + height > info->image_height || left + width > info->image_width)
        return end(work, NOT_PLAIN);
    info->out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg.start(info);
    JDIMENSION above = top ? top - 1 : 0, first = left ? left - 1 : 0;
    JDIMENSION last = least(left + width + 1, info->output_width);
    if (last - first < NARROWEST) last = least(first + NARROWEST, info->output_width);
    if (last - first < NARROWEST) first = last < NARROWEST ? 0 : last - NARROWEST;
    JDIMENSION wide = last - first;
    if (wide < info->output_width) jpeg.crop_scanline(info, &first, &wide);
    work->row = malloc((size_t)wide * channels);
    if (!work->row) return end(work, NOT_PLAIN);
    if (above) jpeg.skip_scanlines(info, above);
    while (info->output_scanline < top + height) {
        unsigned char *row = work->row;
        JDIMENSION y = info->output_scanline;
        if (jpeg.read_scanlines(info, &row, 1) != 1) return end(work, NOT_PLAIN);
        if (y >= top)
            memcpy(out + (size_t)(y - top) * width * channels, row + (size_t)(left - first) * channels,
                   (size_t)width * channels);
    }
    return end(work, work->errors.num_warnings ? NOT_PLAIN : DONE);
}

/* ---------------------------------------------------------------- for Python */
static PyObject *region_bind(PyObject *self, PyObject *args) {
    PyObject *path;
    (void)self;
    if (!PyArg_ParseTuple(args, "O&:bind", PyUnicode_FSConverter, &path)) return NULL;
    void *handle = dlopen(PyBytes_AsString(path), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    Py_DECREF(path);
    if (!handle) return PyErr_Format(PyExc_OSError, "the file is not loaded");
    for (size_t i = 0; i < sizeof SYMBOLS / sizeof *SYMBOLS; i++) {
        /* A handle's symbols are its own and those of the libraries it was linked with. */
        *SYMBOLS[i].place = dlsym(handle, SYMBOLS[i].name);
        if (!*SYMBOLS[i].place) {
            dlclose(handle);
            return PyErr_Format(PyExc_OSError, "its JPEG library has no %s", SYMBOLS[i].name);
        }
    }
    /* The handle stays open: what was found must not go away. */
    Work work;
    prepare(&work);
    if (setjmp(work.back)) {
        end(&work, FAILED);
        return PyErr_Format(PyExc_OSError, "its JPEG library has another layout: %s", work.message);
    }
    jpeg.create(&work.info, JPEG_LIB_VERSION, sizeof work.info);
    end(&work, DONE);
    Py_RETURN_NONE;
}

static int bound(void) {
    if (jpeg.read_scanlines) return 1;
    PyErr_SetString(PyExc_RuntimeError, "bind() was not called");
    return 0;
}

/* Whether a file begins and ends as one that was written to its end. */
static int whole(const Py_buffer *data) {
    const unsigned char *bytes = data->buf;
    Py_ssize_t n = data->len;
    return n > 4 && bytes[0] == 0xFF && bytes[1] == 0xD8 && bytes[n - 2] == 0xFF && bytes[n - 1] == 0xD9;
}

static PyObject *region_shape(PyObject *self, PyObject *args) {
    Py_buffer data;
    (void)self;
    if (!bound() || !PyArg_ParseTuple(args, "y*:shape", &data)) return NULL;
    Work work;
    unsigned shape[3];
    int outcome = whole(&data) ? look(&work, data.buf, (size_t)data.len, shape) : NOT_PLAIN;
    PyBuffer_Release(&data);
    if (outcome != DONE) Py_RETURN_NONE;
    return Py_BuildValue("III", shape[0], shape[1], shape[2]);
}

static PyObject *region_decode(PyObject *self, PyObject *args) {
    Py_buffer data, out;
    unsigned box[4], channels;
    (void)self;
    if (!bound() || !PyArg_ParseTuple(args, "y*(IIII)Iw*:decode", &data, &box[0], &box[1], &box[2], &box[3],
                                      &channels, &out))
        return NULL;
    int fits = (channels == 1 || channels == 3) && box[0] <= 65535 && box[1] <= 65535 && box[2] >= 1 &&
               box[2] <= 65535 && box[3] >= 1 && box[3] <= 65535 &&
               (size_t)out.len == (size_t)box[2] * box[3] * channels;
    int outcome = NOT_PLAIN;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the box or the buffer has another size");
    } else if (whole(&data)) {
        Py_BEGIN_ALLOW_THREADS;
        Work work;
        outcome = decode(&work, data.buf, (size_t)data.len, box, channels, out.buf);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&out);
    return fits ? PyBool_FromLong(outcome == DONE) : NULL;
}

static PyMethodDef METHODS[] = {
    {"bind", region_bind, METH_VARARGS,
     "bind(path): use the JPEG library of the loaded file `path`.\n\n"
     "Raises OSError: it has none that fits."},
    {"shape", region_shape, METH_VARARGS,
     "shape(data) -> (height, width, stored channels), or None for what is to be left to Pillow."},
    {"decode", region_decode, METH_VARARGS,
     "decode(data, (top, left, height, width), channels, out) -> bool\n\n"
     "Write the rectangle to `out`, height * width * channels bytes; False if it is to be left to Pillow\n"
     "(`out` is then undefined). Without the interpreter's lock."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "pipeline.datasets._region", NULL, -1, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__region(void) { return PyModule_Create(&MODULE); }

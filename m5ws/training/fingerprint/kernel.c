/* Fingerprints of tensors in main memory: the sums that `run_sums.py` describes, in one pass over the bytes.

   A run is `rows` times `length` consecutive words in memory. The first word has the index `first`, and each row begins
   `stride` indices after the one before. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

struct run {
    uint64_t address, width, rows, length, first, stride, sum;
};

enum level { PLAIN, AVX2, AVX512 };

static const char *const LEVELS[] = {"plain", "avx2", "avx512"};
static enum level best = PLAIN;

static inline __attribute__((always_inline)) uint64_t mix(uint64_t bits)
{
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
    return bits ^ bits >> 31;
}

/* A word is copied out of memory, since a tensor may begin at any address. */
#define SUM_OF(NAME, WORD, TARGET)                                                                    \
    TARGET static uint64_t NAME(const char *at, uint64_t length, uint64_t first)                      \
    {                                                                                                 \
        const uint64_t index = 0x9E3779B97F4A7C15u;                                                   \
        uint64_t sum = 0;                                                                             \
        for (uint64_t i = 0; i < length; ++i) {                                                       \
            WORD word;                                                                                \
            memcpy(&word, at + i * sizeof word, sizeof word);                                         \
            sum += mix(word + first * index + i * index);                                             \
        }                                                                                             \
        return sum;                                                                                   \
    }

#define SUMS_OF(LEVEL, TARGET)                                                                        \
    SUM_OF(bytes_##LEVEL, uint8_t, TARGET)                                                            \
    SUM_OF(halves_##LEVEL, uint16_t, TARGET)                                                          \
    SUM_OF(words_##LEVEL, uint32_t, TARGET)                                                           \
    SUM_OF(doubles_##LEVEL, uint64_t, TARGET)

SUMS_OF(plain, )
#define OF_LEVEL(LEVEL) {bytes_##LEVEL, halves_##LEVEL, words_##LEVEL, doubles_##LEVEL}

#if defined(__x86_64__)
SUMS_OF(avx2, __attribute__((target("avx2"))))
SUMS_OF(avx512, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512"))))
#else
#define bytes_avx2 bytes_plain
#define halves_avx2 halves_plain
#define words_avx2 words_plain
#define doubles_avx2 doubles_plain
#define bytes_avx512 bytes_plain
#define halves_avx512 halves_plain
#define words_avx512 words_plain
#define doubles_avx512 doubles_plain
#endif

typedef uint64_t (*sum_of)(const char *, uint64_t, uint64_t);
static const sum_of SUMS[][4] = {OF_LEVEL(plain), OF_LEVEL(avx2), OF_LEVEL(avx512)};

static void add(struct run *run, enum level level)
{
    const sum_of sum = SUMS[level][run->width == 1 ? 0 : run->width == 2 ? 1 : run->width == 4 ? 2 : 3];
    const char *at = (const char *)(uintptr_t)run->address;
    run->sum = 0;
    for (uint64_t row = 0; row < run->rows; ++row)
        run->sum += sum(at + row * run->length * run->width, run->length, run->first + row * run->stride);
}

static int is_sound(const struct run *run)
{
    const uint64_t width = run->width;
    return (width == 1 || width == 2 || width == 4 || width == 8) && (run->address || !run->rows || !run->length);
}

static PyObject *sums(PyObject *module, PyObject *arguments)
{
    Py_buffer memory;
    int level = best;
    if (!PyArg_ParseTuple(arguments, "w*|i:sums", &memory, &level))
        return NULL;
    struct run *runs = memory.buf;
    const Py_ssize_t count = memory.len / (Py_ssize_t)sizeof *runs;
    int sound = memory.len % sizeof *runs == 0 && level >= PLAIN && level <= (int)best;
    for (Py_ssize_t i = 0; i < count; ++i)
        sound = sound && is_sound(&runs[i]);
    if (sound) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < count; ++i)
            add(&runs[i], (enum level)level);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&memory);
    if (!sound)
        return PyErr_Format(PyExc_ValueError, "not runs of words in memory, or no level of this processor");
    Py_RETURN_NONE;
}

static PyObject *levels(PyObject *module, PyObject *unused)
{
    PyObject *names = PyTuple_New(best + 1);
    for (int level = 0; names && level <= (int)best; ++level)
        PyTuple_SetItem(names, level, PyUnicode_FromString(LEVELS[level]));
    return names;
}

static PyMethodDef METHODS[] = {
    {"sums", sums, METH_VARARGS,
     "Set the sum of each run, 7 uint64 in native order: address, width, rows, length, first, stride, sum.\n\n"
     "The memory of all runs must exist until this returns. The GIL is released. `level` is a position in `levels()`,\n"
     "by default the last. Raises ValueError for another layout."},
    {"levels", levels, METH_NOARGS, "Return the instruction sets that this processor has and the kernel uses."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "kernel", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_kernel(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        best = AVX2;
    if (best == AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        best = AVX512;
#endif
    return PyModule_Create(&MODULE);
}

/* Declarations that `aviary spec init` once wrote in a way that `check` did not read; one kind after each `//`. */
#include <stddef.h>
#include <stdint.h>
typedef enum { XX_OK = 0, XX_BAD = -7 } xx_result;
typedef struct xx_dev *xx_dev_t;
xx_result xx_open(xx_dev_t *d);
// callback_that_returns_a_function
xx_result xx_f(int (*(*get)(int which))(float));
// function_that_returns_a_function
int (*xx_f(xx_dev_t d, int n))(int, float);
// function_as_parameter
typedef void xx_fn(int);
xx_result xx_f(xx_fn f, xx_fn *g, xx_fn **h);
// array_of_arrays
typedef float xx_mat[4][4];
xx_result xx_f(int m[3][4], const xx_mat n, xx_mat *o);
// array_of_functions
xx_result xx_f(void (*cbs[4])(int), const float v[static 3]);
// pointer_to_array
xx_result xx_f(int (*grid)[5], int (**grids)[5]);
// restrict_before_a_typedef
typedef char *xx_text;
xx_result xx_f(int *restrict p, const xx_text __restrict s, volatile uint32_t *const r);
// variable_arguments
#include <stdarg.h>
xx_result xx_f(xx_dev_t d, const char *fmt, ...);
xx_result xx_g(xx_dev_t d, const char *fmt, va_list ap);
// words_of_the_language_as_parameters
xx_result xx_f(int type, int *in, int out, const char *string, int handle, size_t buffer, int *index, int match, int async);
// words_of_the_language_as_functions
int type(int); int table(int); int utility(int); int match(int); int move(int); int dyn(int); int in(int); int self_(int);
// names_of_generated_code_as_functions
int stub_0(int); int support(int); int API(int); int Some(int); int usize(int); int String(int); int main2(int);
// odd_letters
int xx$f(int a$b);
int xx_größe(int länge);
// wide_numbers
__int128 xx_f(__int128 a, unsigned __int128 *b);
long double xx_g(long double a);
float _Complex xx_h(float _Complex a);
_Float16 xx_i(_Float16 a);
typedef float xx_v4 __attribute__((vector_size(16)));
xx_v4 xx_j(xx_v4 a, xx_v4 *b);
// atomics
int xx_f(_Atomic int *a);
int xx_g(_Atomic int b);
// structs_by_value
struct bits { unsigned a : 3; unsigned b : 13; int : 0; double d; signed char c : 4; };
struct __attribute__((packed)) pk { char c; int i; double d; };
struct al { char c; double d __attribute__((aligned(32))); };
union un { float f; double d; };
struct emp {};
struct anon { int k; union { int i; float f; struct { short x, y; }; }; };
struct deep { struct { struct { struct { struct { struct { void *x; } e; } d; } c; } b; } a; int z; };
struct bits xx_a(struct bits b); struct pk xx_b(struct pk p); struct al xx_c(struct al a); union un xx_d(union un u);
struct emp xx_e(struct emp e); struct anon xx_f(struct anon a); xx_result xx_g(struct deep *d);
// labels_and_variables
int xx_f(int a) __asm__("xx_f_v2");
extern int xx_version;
extern const char *const xx_names[];
// another_calling_convention
#ifdef __x86_64__
int __attribute__((ms_abi)) xx_f(int a, double b, char *c);
#endif
// attributes
int xx_a(void) __attribute__((noreturn)); __attribute__((deprecated)) int xx_b(void); _Noreturn void xx_d(void);

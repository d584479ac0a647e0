/* The server's side of included files with lists that no honest guest sends: nothing is written outside of the program's folder, and
 * nothing of a refused list stays. The vendor's functions and the runtime's are stand-ins. */
#include "../server/includes.c"

static struct opencl_object object;
static int failed;
static char told[8192];

void *aviary_metadata(const void *handle, unsigned int kind) {
    (void)kind;
    return handle == &object ? &object : NULL;
}

cl_int clGetProgramInfo(cl_program program, cl_program_info name, size_t size, void *value, size_t *written) {
    (void)program, (void)name, (void)size, (void)value, (void)written;
    return CL_INVALID_VALUE;
}

cl_int clGetProgramBuildInfo(cl_program program, cl_device_id device, cl_program_build_info name, size_t size, void *value, size_t *written) {
    (void)program, (void)device, (void)name, (void)size, (void)value, (void)written;
    return CL_INVALID_VALUE;
}

/* Notes the options, with what is in the file `here.h` of the working folder. */
cl_int clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options, notify_function notify, void *data) {
    char path[PATH_MAX], content[64] = "";
    (void)program, (void)count, (void)devices, (void)notify, (void)data;
    snprintf(path, sizeof path, "%.500s/./a/home/x/here.h", object.placed_includes ? ((struct includes *)object.placed_includes)->root : "");
    FILE *file = fopen(path, "r");
    if (file && !fgets(content, sizeof content, file))
        content[0] = 0;
    if (file)
        fclose(file);
    snprintf(told, sizeof told, "%s: %s", content, options);
    return CL_SUCCESS;
}

cl_int clCompileProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options, cl_uint headers,
                        const cl_program *header, const char **names, notify_function notify, void *data) {
    (void)headers, (void)header, (void)names;
    return clBuildProgram(program, count, devices, options, notify, data);
}

static char list[1 << 16];
static size_t size;

static void add(const char *name, uint64_t noted, const char *content) {
    size_t length = strlen(name) + 1;
    memcpy(list + size, name, length);
    memcpy(list + size + length, &noted, sizeof noted);
    size += length + sizeof noted;
    if (content) {
        memcpy(list + size, content, strlen(content));
        size += strlen(content);
    }
}

static void check(const char *what, int holds) {
    printf("%s %s\n", holds ? "ok" : "FAILED", what);
    failed += !holds;
}

static size_t entries(const char *folder) {
    size_t count = 0;
    DIR *listing = opendir(folder);
    while (listing && readdir(listing))
        count++;
    if (listing)
        closedir(listing);
    return count;
}

static void refused(const char *what) {
    size_t before = entries(getenv("TMPDIR"));
    cl_int status = place((cl_program)&object, list, size);
    check(what, status != CL_SUCCESS && entries(getenv("TMPDIR")) == before);
    size = 0;
}

int main(void) {
    char folder[] = "/tmp/placed-XXXXXX", outside[64];
    const uint64_t is_folder = OPENCL_INCLUDED_FOLDER;
    if (!mkdtemp(folder) || setenv("TMPDIR", folder, 1) != 0)
        return 2;
    snprintf(outside, sizeof outside, "%s/outside", folder);
    add("/home/x", is_folder, NULL), add("/home/x/../../../../outside", 1, "x"), refused("a way up");
    add("/home/x", is_folder, NULL), add("/..", is_folder, NULL), refused("nothing but a way up");
    add("relative", is_folder, NULL), refused("a relative name");
    add("/home/x", 1, "x"), refused("a file as the working folder");
    add("/home/x", is_folder, NULL), add("/home/x/f", 1000, "short"), refused("less content than it says");
    add("/home/x", is_folder, NULL), add("/home/x/f", UINT64_MAX - 1, "x"), refused("more content than there can be");
    add("/home/x", is_folder, NULL), size -= 3, refused("a record that is cut");
    add("/home/x", is_folder, NULL), add("/home/x/f", 1, "x"), add("/home/x/f/g", 1, "x"), refused("a file as a folder");
    for (int i = 0; i <= OPENCL_INCLUDED_FILES; i++)
        add("/a", is_folder, NULL);
    refused("too many records");
    memset(list, 'a', sizeof list);
    list[0] = '/';
    size = sizeof list;
    refused("a name without an end");
    check("nothing outside", access(outside, F_OK) != 0);

    add("/home/x", is_folder, NULL), add("/home/x/here.h", 4, "text"), add("/home/x/here.h", 5, "other"), add("/usr/include", is_folder, NULL);
    check("an honest list", place((cl_program)&object, list, size) == CL_SUCCESS);
    struct includes *record = object.placed_includes;
    char root[PATH_MAX], expected[3 * PATH_MAX];
    memcpy(root, record->root, sizeof root);
    notify_function none = NULL;
    build((cl_program)&object, 0, NULL, "-DX -I sub -I/usr/include -I \"a b\" -DY=-I", none, NULL);
    snprintf(expected, sizeof expected, "text: -I %s/./a/home/x -DX -I %s/./a/home/x/sub -I %s/a/usr/include -I \"%s/./a/home/x/a b\" -DY=-I",
             root, root, root, root);
    check("options name the folders here", strcmp(told, expected) == 0);
    check("the folder is gone behind the build", access(root, F_OK) != 0 && entries(folder) == 2);
    snprintf(expected, sizeof expected, "In %s/./a/home/x/sub/a.h, %s/a/usr/include/b.h, %s/a/home/x/c.h and %s", root, root, root, root);
    restore_names(expected, root, record->working);
    check("names in a log are the application's", strncmp(expected, "In sub/a.h, /usr/include/b.h, /home/x/c.h and /", 47) == 0);
    rmdir(folder);
    return failed != 0;
}

/* Files that a session writes, and weights of nested graphs (external_model.py): what is equal natively and remotely.
 *   files FOLDER COUNT     FOLDER/model.onnx and FOLDER/nested.onnx, of COUNT elements */
#include <sys/stat.h>
#include <unistd.h>

#include "models.h"

static const char *folder;
static int64_t count;

static const char *in_folder(const char *name) {
    static char paths[4][4096];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static long size_of(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 ? (long)about.st_size : -1;
}

/* Makes a session, runs it and prints the sum of what comes out. */
static OrtSession *session_of(const char *what, const char *path, const OrtSessionOptions *options, const char *file) {
    OrtSession *session = NULL;
    if (told(what, api->CreateSession(env, path, options, &session), file))
        return NULL;
    run_session("run", what, session, count);
    return session;
}

static OrtSessionOptions *new_options(void) {
    OrtSessionOptions *options = NULL;
    told("options", api->CreateSessionOptions(&options), NULL);
    return options;
}

static void nested(void) {
    api->ReleaseSession(session_of("nested", in_folder("nested.onnx"), NULL, NULL));
    const char *weights = in_folder("b.bin"), *moved = in_folder("b.moved");
    CHECK_EQ(rename(weights, moved), 0);
    session_of("a file of a nested graph is missing", in_folder("nested.onnx"), NULL, "b.bin");
    CHECK_EQ(rename(moved, weights), 0);
}

/* Saves the optimized model with weights in a file of their own, or in the other format, and loads it again. */
static void optimized(const char *model, const char *to, const char *weights, const char *least) {
    OrtSessionOptions *options = new_options();
    told("optimized to", api->SetOptimizedModelFilePath(options, in_folder(to)), NULL);
    if (weights) {
        told("weights", api->AddSessionConfigEntry(options, "session.optimized_model_external_initializers_file_name", weights), NULL);
        told("least", api->AddSessionConfigEntry(options, "session.optimized_model_external_initializers_min_size_in_bytes", least), NULL);
    }
    OrtSession *session = session_of("optimizing", in_folder(model), options, NULL);
    api->ReleaseSession(session);
    api->ReleaseSessionOptions(options);
    if (!session)
        return;
    printf("%s: %d, weights of %ld\n", to, size_of(in_folder(to)) > 0, weights ? size_of(in_folder(weights)) : -1);
    api->ReleaseSession(session_of(to, in_folder(to), NULL, NULL));
    CHECK_EQ(remove(in_folder(to)), 0);
    if (weights)
        remove(in_folder(weights));
}

/* True of a whole file of JSON; it is removed. */
static int is_profile(const char *path) {
    FILE *file = fopen(path, "r");
    char text[1 << 16] = "";
    size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    while (bytes > 0 && (text[bytes - 1] == '\n' || text[bytes - 1] == ' '))
        bytes--;
    remove(path);
    return bytes > 100 && text[0] == '[' && text[bytes - 1] == ']' && strstr(text, "session_initialization");
}

/* Profiles: ended by the program, by the end of the session, in a folder that is not there; found from another folder. */
static void profiled(const char *prefix, int leaves) {
    OrtSessionOptions *options = new_options(), *copy = NULL;
    OrtAllocator *allocator = NULL;
    char *name = NULL, *second = NULL, before[4096];
    told("allocator", api->GetAllocatorWithDefaultOptions(&allocator), NULL);
    told("profile", api->EnableProfiling(options, prefix), NULL);
    told("copy", api->CloneSessionOptions(options, &copy), NULL);
    OrtSession *session = session_of("profiled", in_folder("model.onnx"), copy, NULL);
    CHECK(getcwd(before, sizeof before) != NULL);
    CHECK_EQ(leaves ? chdir("/") : 0, 0);
    told("end", api->SessionEndProfiling(session, allocator, &name), NULL);
    CHECK_EQ(chdir(before), 0);
    printf("%.*s: named %d, a profile %d\n", (int)strlen(prefix), name, strlen(name) > strlen(prefix) + 20, is_profile(name));
    told("a second end", api->SessionEndProfiling(session, allocator, &second), NULL);
    printf("second: '%s'\n", second);
    told("free", api->AllocatorFree(allocator, name), NULL);
    told("free", api->AllocatorFree(allocator, second), NULL);
    api->ReleaseSession(session);
    told("no profile", api->DisableProfiling(copy), NULL);
    api->ReleaseSession(session_of("without a profile", in_folder("model.onnx"), copy, NULL));
    api->ReleaseSessionOptions(copy);
    api->ReleaseSessionOptions(options);
}

/* The script looks for the file. */
static void left(const char *prefix) {
    OrtSessionOptions *options = new_options();
    told("profile", api->EnableProfiling(options, prefix), NULL);
    api->ReleaseSession(session_of("profiled", in_folder("model.onnx"), options, NULL));
    api->ReleaseSessionOptions(options);
}

int main(int number, char **arguments) {
    char whole[4096], path[8192];
    if (number < 3 || !realpath(arguments[1], whole))
        return 2;
    folder = arguments[1];
    count = atoll(arguments[2]);
    api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    told("environment", api->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "files", &env), NULL);
    nested();
    optimized("model.onnx", "optimized.onnx", "optimized.bin", "16");
    optimized("nested.onnx", "optimized.onnx", "optimized.bin", "16");
    optimized("model.onnx", "optimized.onnx", "optimized.bin", "1000000000");
    optimized("model.onnx", "optimized.ort", NULL, NULL);
    optimized("model.onnx", "optimized.onnx", "nowhere/optimized.bin", "16");
    optimized("model.onnx", "optimized.onnx", "/nowhere/optimized.bin", "16");
    folder = whole;
    optimized("model.onnx", "optimized.onnx", "optimized.bin", "16");
    profiled("in the present folder", 1);
    snprintf(path, sizeof path, "%s/in its folder", whole);
    profiled(path, 1);
    profiled("nowhere/profile", 0);
    left("left");
    api->ReleaseEnv(env);
    return check_done();
}

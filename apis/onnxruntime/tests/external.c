/* Models whose weights are in other files (external_model.py): what is equal natively and remotely.
 *   external FOLDER COUNT [FILE...]     FOLDER/model.onnx, of COUNT elements; files that are no models */
#include "models.h"

/* Prints the code and the text of a status, which is released. */
static void whole(const char *what, OrtStatus *status) {
    printf("%s: %d %s\n", what, status ? (int)api->GetErrorCode(status) : 0, status ? api->GetErrorMessage(status) : "");
    if (status)
        api->ReleaseStatus(status);
}

static void *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    static char content[1 << 28];
    *size = file ? fread(content, 1, sizeof content, file) : 0;
    if (file)
        fclose(file);
    return content;
}

int main(int count, char **arguments) {
    char path[4096], weights[4096], moved[4096];
    OrtSessionOptions *options = NULL;
    OrtSession *session = NULL;
    if (count < 3)
        return 2;
    const char *folder = arguments[1];
    const int64_t elements = atoll(arguments[2]);
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    snprintf(weights, sizeof weights, "%s/b.bin", folder);
    snprintf(moved, sizeof moved, "%s/b.moved", folder);
    api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    told("environment", api->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "external", &env), NULL);
    told("options", api->CreateSessionOptions(&options), NULL);

    if (told("file", api->CreateSession(env, path, options, &session), NULL) == 0)
        run_session("file", "file", session, elements);
    api->ReleaseSession(session);
    session = NULL;

    size_t size;
    void *model = read_file(path, &size);
    told("array without a folder", api->CreateSessionFromArray(env, model, size, options, &session), "w.bin");
    told("folder", api->AddSessionConfigEntry(options, "session.model_external_initializers_file_folder_path", folder), NULL);
    if (told("array", api->CreateSessionFromArray(env, model, size, options, &session), NULL) == 0)
        run_session("array", "array", session, elements);
    api->ReleaseSession(session);
    session = NULL;

    /* What is optimized is written to the program's file, and can be loaded again. */
    snprintf(path, sizeof path, "%s/optimized.onnx", folder);
    told("optimized to", api->SetOptimizedModelFilePath(options, path), NULL);
    told("optimizing", api->CreateSessionFromArray(env, model, size, options, &session), NULL);
    api->ReleaseSession(session);
    session = NULL;
    told("no more", api->SetOptimizedModelFilePath(options, ""), NULL);
    if (told("optimized", api->CreateSession(env, path, options, &session), NULL) == 0)
        run_session("optimized", "optimized", session, elements);
    api->ReleaseSession(session);
    session = NULL;
    CHECK_EQ(remove(path), 0);
    told("nowhere", api->SetOptimizedModelFilePath(options, "/nowhere/optimized.onnx"), NULL);
    printf("optimizing to nowhere fails: %d\n", told("optimizing to nowhere", api->CreateSessionFromArray(env, model, size, options, &session), NULL) != 0);
    told("no more", api->SetOptimizedModelFilePath(options, ""), NULL);
    snprintf(path, sizeof path, "%s/model.onnx", folder);

    CHECK_EQ(rename(weights, moved), 0);
    told("a file is missing", api->CreateSession(env, path, options, &session), "b.bin");
    CHECK_EQ(rename(moved, weights), 0);
    /* Models that are none: the texts name them. */
    for (int n = 3; n < count; n++)
        whole("no model", api->CreateSession(env, arguments[n], options, &session));
    api->ReleaseSessionOptions(options);
    api->ReleaseEnv(env);
    return check_done();
}

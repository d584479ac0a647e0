/* Which versions of its table the library answers, and what programs of each can do.
 * versions           what is equal natively and remotely
 * versions remoted   a function that this header does not have */
#include <stdio.h>
#include <stdlib.h>

#include <onnxruntime_c_api.h>

/* ONNX Runtime has no version near it. */
enum { NO_VERSION = 999 };

static void use(const OrtApi *api, uint32_t version) {
    OrtEnv *environment = NULL;
    char **providers = NULL;
    int count = 0;
    int made = api->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "versions", &environment) == NULL;
    int told = api->GetAvailableProviders(&providers, &count) == NULL;
    printf("version %u: environment %d, providers %d\n", version, made, told && count > 0);
    if (told && api->ReleaseAvailableProviders(providers, count) != NULL)
        puts("the names of providers cannot be released");
    api->ReleaseEnv(environment);
}

int main(int count, char **arguments) {
    (void)arguments;
    const OrtApiBase *base = OrtGetApiBase();
    uint32_t last = 0;
    for (uint32_t version = 1; version <= 64; version++) {
        const OrtApi *api = base->GetApi(version);
        printf("version %u is%s there\n", version, api ? "" : " not");
        if (api && version % 4 == 0)
            use(api, version);
        last = api ? version : last;
    }
    printf("version %d: %d\n", NO_VERSION, base->GetApi(NO_VERSION) != NULL);
    if (count == 1)
        return 0;
    const OrtApi *api = base->GetApi(last);
    OrtStatus *(*const *slots)(const void *) = (OrtStatus *(*const *)(const void *))(const void *)api;
    OrtStatus *status = slots[sizeof *api / sizeof *slots](NULL);
    printf("later: %d %s\n", (int)api->GetErrorCode(status), api->GetErrorMessage(status));
    api->ReleaseStatus(status);
    return 0;
}

/* Descriptors that a library keeps in the process that loads it: no standard stream, and none that a started program has. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

/* Descriptors that are not closed by exec, but for the first `known`. */
static int left_open(const int *before) {
    int count = 0;
    for (int fd = 0; fd < 4096; fd++)
        count += fcntl(fd, F_GETFD) >= 0 && !(fcntl(fd, F_GETFD) & FD_CLOEXEC) && !before[fd];
    return count;
}

int main(void) {
    static int before[4096];
    int saved = dup2(1, 100), closed = 0;
    char text[16] = "";
    close(0);
    close(1);
    close(2);
    for (int fd = 0; fd < 4096; fd++)
        before[fd] = fcntl(fd, F_GETFD) >= 0;
    int sum = ta_add(20, 22);
    ta_status status = ta_upper("text", text, sizeof text);
    for (int fd = 0; fd < 3; fd++)
        closed += fcntl(fd, F_GETFD) < 0;
    int left = left_open(before);
    /* Output to the closed streams reaches nothing. */
    for (int i = 0; i < 50; i++)
        closed += write(1, "text for a stream that is closed", 32) < 0;
    for (int fd = 3; fd < 1024; fd++)
        if (fd != saved)
            close(fd);
    int again = ta_add(1, 2);
    dup2(saved, 1);
    CHECK_EQ(sum, 42);
    CHECK_EQ(status, TA_OK);
    CHECK(strcmp(text, "TEXT") == 0);
    CHECK_EQ(closed, 53);
    CHECK_EQ(left, 0);
    CHECK_EQ(again, 3);
    return check_done();
}

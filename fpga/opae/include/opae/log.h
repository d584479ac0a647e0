/* Messages of programs and libraries around OPAE. */
#ifndef AVIARY_OPAE_LOG_H
#define AVIARY_OPAE_LOG_H

#ifdef __cplusplus
extern "C" {
#endif

/* Levels: 0 an error, 1 a message, 2 for debugging. LIBOPAE_LOG is the highest that is printed; 0 where it is not set. */
void opae_print(int loglevel, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif
#endif

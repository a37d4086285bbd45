/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * keys.c: keys of thread-specific data, by which the runtime notices the end of a thread.
 * In: a destructor. Out: a key that is not the program's first. Knows nothing of what is destroyed.
 *
 * Nothing else comes as late: destructors of thread_local objects run before those of keys, and the
 * latter allocate and free. A program has three keys less, one for the heap, one for rings and
 * mimalloc's; each is made when it is first needed.
 */
#include "base.h"

int tcl_key_create(pthread_key_t *key, void (*at_exit)(void *)) {
    pthread_key_t first;
    bool is_taken = !pthread_key_create(&first, NULL);
    int error = pthread_key_create(key, at_exit);
    if (is_taken)
        pthread_key_delete(first);
    return error;
}

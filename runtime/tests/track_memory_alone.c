/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_memory_alone.c: the stress of track_stress_alone.c under AddressSanitizer and
 * UndefinedBehaviorSanitizer.
 */
// build: -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
#include "track_stress_alone.c"

/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_wrappers.c: phases of Fortran and Python programs: three entries, two names. In: the folder
 * of the runtime's sources as the current one. A compiler for Fortran is in setup/packages.
 */
#include "hazard.h"

static const char script[] = "import sys; sys.path.insert(0, '../python'); import tiercel as t\n"
                             "assert t.is_hosted()\n"
                             "t.phase('assemble')\n"
                             "with t.in_phase('solve'): bytearray(100000)\n"
                             "try: t.phase('a\\0b')\n"
                             "except ValueError: sys.exit(0)\n"
                             "sys.exit('a NUL was accepted')\n";

static int hosted(const char *part) {
    char program[4200];
    if (!strcmp(part, "python"))
        execlp("python3", "python3", "-B", "-c", script, NULL);
    snprintf(program, sizeof(program), "%s/fortran_phases", getenv("TIERCEL_TESTS"));
    execl(program, program, NULL);
    fprintf(stderr, "%s: %s\n", part, strerror(errno));
    return 1;
}

static void check(const char *part) {
    struct daemon d = {0};
    host(&d, part);
    struct session *s = d.session[d.sessions - 1]; /* the first is this program before its exec */
    struct tcl_phase_name *table = (void *)(s->base + TCL_PHASES_AT);
    CHECK(header_of(s)->phase_count == 3, "%s: %u names", part, header_of(s)->phase_count);
    CHECK(header_of(s)->phase_entered == (3ull << 32 | 1), "%s: %lx", part,
          header_of(s)->phase_entered);
    CHECK(table[1].name_bytes == 8 && !memcmp(table[1].name, "assemble", 8), "%s", part);
    CHECK(table[2].name_bytes == 5 && !memcmp(table[2].name, "solve", 5), "%s", part);
    close_daemon(&d);
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted(argv[1]);
    check("python");
    check("fortran");
    puts("track_wrappers: phases in Python and Fortran");
    return 0;
}

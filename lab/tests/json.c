// Picks values out of JSON, for scripts without a JSON tool.
// In: a path such as tiers.0.nodes, JSON on stdin. Out: the value as it is written, without blanks
// outside strings; `#` as last step prints an array's length. Status 1 when there is no such value.
// Knows nothing of what it reads; it takes JSON that is well formed.
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 8 << 20 };

static const char *blanks(const char *at) {
    while (isspace((unsigned char)*at)) {
        at++;
    }
    return at;
}

static const char *end_of_string(const char *at) {
    for (at++; *at != '\0' && *at != '"'; at++) {
        at += at[0] == '\\' && at[1] != '\0';
    }
    return at + (*at == '"');
}

// Past the value that begins here.
static const char *end_of_value(const char *at) {
    int depth = 0;
    do {
        at = blanks(at);
        if (*at == '"') {
            at = end_of_string(at);
        } else if (*at == '{' || *at == '[') {
            depth++;
            at++;
        } else if (*at == '}' || *at == ']') {
            depth--;
            at++;
        } else if (*at == ',' || *at == ':') {
            at++;
        } else {
            while (*at != '\0' && strchr(",:]}", *at) == NULL && !isspace((unsigned char)*at)) {
                at++;
            }
        }
    } while (depth > 0 && *at != '\0');
    return at;
}

// The member or element `step` of the value at `at`; with `step` NULL the number of elements.
static const char *child(const char *at, const char *step, size_t length, int *count) {
    const char open = *at;
    if (open != '{' && open != '[') {
        return NULL;
    }
    at = blanks(at + 1);
    for (int index = 0; *at != '\0' && *at != '}' && *at != ']'; index++) {
        int found = 0;
        if (open == '{') {
            const char *end = end_of_string(at);
            found = step != NULL && (size_t)(end - at) == length + 2 &&
                    strncmp(at + 1, step, length) == 0;
            at = blanks(blanks(end) + 1);
        } else {
            found = step != NULL && atoi(step) == index;
        }
        if (found) {
            return at;
        }
        (*count)++;
        at = blanks(end_of_value(at));
        at = *at == ',' ? blanks(at + 1) : at;
    }
    return NULL;
}

static void print(const char *at) {
    const char *end = end_of_value(at);
    while (at < end) {
        if (*at == '"') {
            const char *stop = end_of_string(at);
            fwrite(at, 1, (size_t)(stop - at), stdout);
            at = stop;
        } else if (isspace((unsigned char)*at)) {
            at++;
        } else {
            putchar(*at++);
        }
    }
    putchar('\n');
}

int main(int argc, char **argv) {
    static char text[MAX_BYTES + 1];
    if (argc != 2) {
        fprintf(stderr, "usage: json PATH < FILE\n");
        return 2;
    }
    text[fread(text, 1, MAX_BYTES, stdin)] = '\0';
    const char *at = blanks(text);
    for (const char *step = argv[1]; *step != '\0';) {
        const size_t length = strcspn(step, ".");
        int count = 0;
        if (*step == '#') {
            child(at, NULL, 0, &count);
            printf("%d\n", count);
            return 0;
        }
        at = child(at, step, length, &count);
        if (at == NULL) {
            fprintf(stderr, "json: nothing at %s\n", argv[1]);
            return 1;
        }
        step += length + (step[length] == '.');
    }
    print(at);
    return 0;
}

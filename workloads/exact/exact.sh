#!/bin/bash
# Eight real programs of the distribution in a timed guest: every miss by allocation site, beside
# what sampling made of it. `cargo xtask docs` makes a table of docs/evaluation.md from its output.
#
#   workloads/exact/exact.sh TIERCEL [NAME ...] >>lab/results/truth/exact.jsonl
#
# Prints a line of JSON for each program: its name, its language and what `tiercel lab truth --json`
# said. The inputs are made here, the same every time. Packages: setup/packages.txt, group `exact`.
set -eu
export LC_ALL=C TZ=UTC0
tiercel=$(realpath "$1")
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# exact NAME LANGUAGE INPUT... -- PROGRAM ARGUMENT...
exact() {
    local name=$1 language=$2 files=() said
    shift 2
    while [ "$1" != -- ]; do
        files+=(--file "$1")
        shift
    done
    shift
    said=$("$tiercel" lab truth --json --machine spr-cxl --timeout 3000s "${files[@]}" -- "$@")
    printf '{"program":"%s","language":"%s","truth":%s}\n' "$name" "$language" \
        "$(printf %s "$said" | tr -d '\n')"
}

# A random formula of clauses of three, easy enough to be satisfied.
minisat() {
    awk -v variables=30000 -v clauses=96000 'BEGIN {
        srand(1)
        print "p cnf", variables, clauses
        for (i = 0; i < clauses; i++) {
            line = ""
            for (k = 0; k < 3; k++)
                line = line (rand() < 0.5 ? "-" : "") 1 + int(rand() * variables) " "
            print line "0"
        }
    }' >formula
    exact minisat C++ formula -- /usr/bin/minisat -verb=0 formula
}

# 8,000 examples with some 65 features each.
liblinear() {
    awk -v count=8000 'BEGIN {
        srand(1)
        for (i = 0; i < count; i++) {
            line = (rand() < 0.5) ? "+1" : "-1"
            for (f = 1; f <= 2000; f += 1 + int(rand() * 60))
                line = line " " f ":" int(rand() * 100) / 100
            print line
        }
    }' >data
    exact liblinear C++ data -- /usr/bin/liblinear-train -s 0 -c 4 -e 0.0001 -q data model
}

# The compiler itself, of a file with containers of the standard library.
cc1plus() {
    cat >big.cc <<'SOURCE'
#include <algorithm>
#include <map>
#include <string>
#include <vector>
template <int N> struct Table {
    std::map<std::string, std::vector<long>> rows;
    long sum(const std::string &key) {
        auto &row = rows[key];
        row.push_back(N);
        std::sort(row.begin(), row.end());
        long all = 0;
        for (long one : row)
            all += one % (N + 2);
        return all;
    }
};
#define DO(N) long use##N(const std::string &key) { static Table<N> table; return table.sum(key); }
#define TEN(N) DO(N##0) DO(N##1) DO(N##2) DO(N##3) DO(N##4) DO(N##5) DO(N##6) DO(N##7) DO(N##8)
TEN(1) TEN(2) TEN(3)
SOURCE
    g++ -E big.cc -o big.ii
    exact cc1plus C++ big.ii -- "$(g++ -print-prog-name=cc1plus)" -fpreprocessed -quiet -O2 big.ii \
        -o big.s
}

# Sequences of proteins that descend from one another.
muscle() {
    awk 'BEGIN {
        srand(1)
        letters = "ACDEFGHIKLMNPQRSTVWY"
        for (i = 0; i < 300; i++)
            one[i] = substr(letters, 1 + int(rand() * 20), 1)
        for (n = 0; n < 8; n++) {
            line = ""
            for (i = 0; i < 300; i++) {
                if (rand() < 0.1)
                    one[i] = substr(letters, 1 + int(rand() * 20), 1)
                if (rand() > 0.03)
                    line = line one[i]
            }
            print ">s" n "\n" line
        }
    }' >proteins
    exact muscle C++ proteins -- /usr/bin/muscle -align proteins -output aligned -threads 1
}

# A cube of bricks, held at one side and loaded at the other (Fortran, with a solver in C).
ccx() {
    awk -v n=16 'BEGIN {
        print "*NODE, NSET=ALL"
        for (z = 0; z <= n; z++) for (y = 0; y <= n; y++) for (x = 0; x <= n; x++)
            print 1 + x + (n + 1) * (y + (n + 1) * z) ", " x ", " y ", " z
        print "*ELEMENT, TYPE=C3D8, ELSET=BODY"
        for (z = 0; z < n; z++) for (y = 0; y < n; y++) for (x = 0; x < n; x++) {
            a = 1 + x + (n + 1) * (y + (n + 1) * z)
            b = a + (n + 1) * (n + 1)
            print ++e ", " a ", " a + 1 ", " a + n + 2 ", " a + n + 1 ", " \
                b ", " b + 1 ", " b + n + 2 ", " b + n + 1
        }
        print "*MATERIAL, NAME=M\n*ELASTIC\n210000., 0.3\n*SOLID SECTION, ELSET=BODY, MATERIAL=M"
        print "*NSET, NSET=HELD, GENERATE\n1, " (n + 1) * (n + 1) ", 1"
        print "*NSET, NSET=PULLED, GENERATE\n" (n + 1) * (n + 1) * n + 1 ", " (n + 1) ^ 3 ", 1"
        print "*BOUNDARY\nHELD, 1, 3\n*STEP\n*STATIC, SOLVER=SPOOLES\n*CLOAD\nPULLED, 1, 1."
        print "*NODE FILE\nU\n*END STEP"
    }' >cube.inp
    exact ccx Fortran cube.inp -- /usr/bin/ccx cube
}

# The index of a random genome.
bwa() {
    awk 'BEGIN {
        srand(1)
        print ">g"
        for (i = 0; i < 50000; i++) {
            line = ""
            for (k = 0; k < 60; k++)
                line = line substr("ACGT", 1 + int(rand() * 4), 1)
            print line
        }
    }' >genome
    exact bwa C genome -- /usr/bin/bwa index genome
}

# A table in memory, an index and a join.
sqlite3() {
    cat >queries <<'SOURCE'
CREATE TABLE t(a INTEGER PRIMARY KEY, b INTEGER, c TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
INSERT INTO t SELECT i, i * 7919 % 100003, 'text ' || i * 31 % 1009 FROM n;
CREATE INDEX tb ON t(b);
SELECT count(*), sum(x.a) FROM t x JOIN t y ON x.b = y.a WHERE y.c < 'text 5';
SOURCE
    exact sqlite3 C queries -- /usr/bin/sqlite3 -batch :memory: '.read queries'
}

# Words and numbers, compressed.
zstd() {
    awk 'BEGIN { for (i = 0; i < 100000; i++) {
        x = (x * 1103515245 + 12345) % 2147483648
        print i, x % 1000, "word" x % 977, x } }' >text
    exact zstd C text -- /usr/bin/zstd -q -f --single-thread -18 text -o text.zst
}

for name in "${@:-}"; do
    for one in ${name:-minisat liblinear cc1plus muscle ccx bwa sqlite3 zstd}; do
        "$one"
    done
done

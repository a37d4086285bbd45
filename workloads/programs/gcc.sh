# gcc -O2 of a generated file of 3,000 lines; the object file is compared
. "${0%/*}/lib.sh"
need gcc
awk -v count=$((120 * SIZE)) 'BEGIN {
    print "struct s { long a[8]; struct s *next; };"
    for (i = 0; i < count; i++) {
        print "long f" i "(struct s *s, long n) {\n    long sum = " i ";"
        print "    for (long k = 0; k < n; k++) {\n        sum += s->a[k & 7] * " i % 13 + 2 ";"
        for (j = 0; j < 12; j++)
            print "        if (sum % " j + i % 7 + 3 " == " j ") s->a[" j % 8 "] ^= sum >> " j ";"
        print "        s = s->next;\n    }"
        if (i > 2) print "    sum += f" i - 1 "(s, n / 2) - f" int(i / 2) "(s, n / 3);"
        print "    return sum;\n}"
    }
}' >big.c
host gcc -O2 -c big.c -o big.o
echo "status $?"
digest <big.o

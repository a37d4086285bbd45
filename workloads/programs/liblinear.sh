# liblinear-train: logistic regression on 8,000 generated examples
. "${0%/*}/lib.sh"
need liblinear-train
awk -v count=$((8000 * SIZE)) 'BEGIN {
    srand(1)
    for (i = 0; i < count; i++) {
        line = (rand() < 0.5) ? "+1" : "-1"
        for (f = 1; f <= 2000; f += 1 + int(rand() * 60))
            line = line " " f ":" int(rand() * 100) / 100
        print line
    }
}' >data
host liblinear-train -s 0 -c 4 -e 0.0001 -q data model
echo "status $?"
digest <model

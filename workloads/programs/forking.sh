# python3's multiprocessing by fork: workers write to what they inherited, as the parent does
. "${0%/*}/lib.sh"
need $PYTHON
host $PYTHON - $((3 * SIZE)) <<'PY'
import multiprocessing, sys
table = {n: [n, str(n)] for n in range(60000)}
blocks = [bytearray(8000) for n in range(500)]
def work(turn):
    for key in range(turn, 60000, 7):
        table[key][0] += turn
    for block in blocks:
        block[:] = bytes([turn % 251]) * len(block)
    return sum(row[0] for row in table.values()), sum(map(sum, blocks))
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    for turn in range(int(sys.argv[1])):
        with context.Pool(3, maxtasksperchild=1) as pool:
            answers = pool.map_async(work, [turn + 1, turn + 2, turn + 3], 1)
            for key in range(0, 60000, 5):
                table[key][0] -= 1
            for block in blocks:
                block[turn] += 1
            found = answers.get()
        print(len(found), all(sum_of_blocks == (turn + 1 + n) % 251 * 4000000
                              for n, (_, sum_of_blocks) in enumerate(found)))
    print(sum(row[0] for row in table.values()), sum(map(sum, blocks)))
PY
echo "status $?"

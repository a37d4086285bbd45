# python3: lists, dictionaries, strings and objects made, sorted and dropped
. "${0%/*}/lib.sh"
need $PYTHON
host $PYTHON - $((6 * SIZE)) <<'PY'
import sys
class Node:
    __slots__ = ("key", "next")
    def __init__(self, key, following):
        self.key, self.next = key, following
total = 0
for turn in range(int(sys.argv[1])):
    words = [str((n * 7919 + turn) % 100003) for n in range(100000)]
    counts = {}
    for word in words:
        counts[word[:4]] = counts.get(word[:4], 0) + 1
    ordered = sorted(words, key=lambda word: (len(word), word))
    chain = None
    for word in ordered[::3]:
        chain = Node(word, chain)
    while chain:
        total += len(chain.key)
        chain = chain.next
    grown = []
    for n in range(200000):
        grown.append(n ^ turn)
    total += sum(grown) + len(counts) + len("".join(ordered))
print(total)
PY
echo "status $?"

# python3 with numpy: products, sorts, transforms and temporaries of some megabytes
. "${0%/*}/lib.sh"
need $PYTHON
host $PYTHON - $((4 * SIZE)) <<'PY'
import sys
import numpy
numbers = numpy.random.default_rng(7)
total = 0.0
for turn in range(int(sys.argv[1])):
    a = numbers.integers(0, 1000, (300, 300)).astype(float)
    b = numbers.integers(0, 1000, (300, 300)).astype(float)
    total += (a @ b).sum()
    c = numbers.integers(0, 1 << 40, 1 << 19)
    total += float(numpy.sort(c)[:: 1 << 10].sum() % 1000003)
    d = numpy.concatenate([c, c[::-1]]) % 1009
    total += float((d * d + d).sum())
    total += round(abs(numpy.fft.rfft(d[: 1 << 16].astype(float))[1]), 3)
print(f"{total:.3f}")
PY
echo "status $?"

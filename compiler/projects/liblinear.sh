# liblinear: its commands and library by make in C++, and the example that it comes with
. "${0%/*}/lib.sh"
# Debian's archive has no copy of the BLAS: the system's is linked.
mkdir blas
ar rc blas/blas.a
build() { # words of make
    rm -f -- *.o train predict
    make -o blas/blas.a LIBS=-lblas "$@" all lib
}
build CXX=clang++-19
./train -s 0 -q heart_scale plain.model
build CXX="$CXX"
has_checks train predict liblinear.so.*
records ./train -s 0 -q heart_scale checked.model
cmp plain.model checked.model
./predict heart_scale checked.model predicted | grep 'Accuracy = [89][0-9]'

# Its library is linked without CFLAGS.
build CXX="$CXX -flto"
has_checks train predict liblinear.so.*
./train -s 0 -q heart_scale checked.model
./predict heart_scale checked.model predicted | grep 'Accuracy = [89][0-9]'
